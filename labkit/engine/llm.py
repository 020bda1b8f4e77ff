"""``LLM``: the engine's Python face, for scripts and notebooks."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from torch import Tensor

from labkit.engine.chat_template import render_chat
from labkit.engine.config import EngineConfig
from labkit.engine.core import NO_TOKENIZER, Engine
from labkit.engine.outputs import RequestOutput
from labkit.engine.progress import loading_bar
from labkit.engine.request import Request
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.tokenizer import Tokenizer
from labkit.errors import ConfigError, EngineClosedError, LabkitError, RequestError, TemplateError, TokenizerError

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class LLM:
    """A loaded model that answers.

    model and the keyword arguments are the fields of EngineConfig. Use it as a context manager, or call ``close``.
    All calls are synchronous, so they work inside a running event loop (Jupyter) as well. Several threads may call:
    their requests then run together.

        with LLM("smollm2") as llm:
            print(llm.chat([{"role": "user", "content": "What is the capital of France?"}]).text)
    """

    def __init__(self, model: str | Path = "smollm2", **settings: Any) -> None:
        try:
            config = EngineConfig(model=model, **settings)
        except TypeError:
            unknown = sorted(set(settings) - set(EngineConfig.__dataclass_fields__))
            raise ConfigError(
                f"LLM has no setting {', '.join(unknown)}.", cure="EngineConfig lists the settings."
            ) from None
        with loading_bar() as progress:
            self._engine: Engine | None = Engine(config, progress)

    @property
    def engine(self) -> Engine:
        """The engine underneath. Raises EngineClosedError after ``close``."""
        if self._engine is None:
            raise EngineClosedError("This LLM was closed.", cure="Make a new one.")
        return self._engine

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises TokenizerError if the checkpoint has none."""
        if self.engine.tokenizer is None:
            raise TokenizerError("This checkpoint has no tokenizer.", cure=NO_TOKENIZER)
        return self.engine.tokenizer

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Answer prompts (texts or lists of token ids), all at once; returns the outputs in order.

        A prompt that cannot be served does not stop the others: its output carries ``error``. A single prompt
        raises it instead.
        """
        single = _is_prompt(prompts)
        if not isinstance(prompts, Iterable):
            raise RequestError(f"The prompts are {prompts!r}.", cure="Give a text, token ids, or a list of them.")
        batch = cast(list[Prompt], [prompts] if single else list(prompts))
        outputs = self._run(batch, _params_for(batch, params))
        if single and outputs[0].error:
            raise outputs[0].error
        return outputs

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Generator[str, None, RequestOutput]:
        """Yield the answer's text piece by piece; the generator's return value is the whole RequestOutput.

        Leaving the loop early ends the request.
        """
        params = params or SamplingParams()
        if params.n != 1:
            raise ConfigError(f"n is {params.n} for a stream.", cure="Stream one answer, or use generate.")
        engine, ids, shown = self.engine, self._token_ids(prompt), 0
        [request] = engine.submit(ids, params)
        try:
            while True:  # whoever steps the engine: what counts is the text that the request has by now
                ended, text = request.finished, request.text
                if len(text) > shown:
                    yield text[shown:]
                    shown = len(text)
                elif ended:
                    break
                else:
                    engine.step()
        finally:
            engine.abort(request)
        if request.error:
            raise request.error
        return RequestOutput(prompt if isinstance(prompt, str) else None, ids, [request.completion()])

    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **template_settings: Any
    ) -> RequestOutput:
        """Answer a conversation, [{"role": ..., "content": ...}, ...], through the model's chat template."""
        ids = self.chat_ids(messages, **template_settings)
        [output] = self._run([ids], [params or SamplingParams()])
        if output.error:
            raise output.error
        return output

    def stream_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **template_settings: Any
    ) -> Generator[str, None, RequestOutput]:
        """Like ``chat``, but yields the answer piece by piece."""
        return self.stream(self.chat_ids(messages, **template_settings), params)

    def chat_ids(self, messages: Sequence[Message], **template_settings: Any) -> list[int]:
        """The token ids of a conversation, up to where the model shall answer."""
        if settings := SamplingParams.names() & set(template_settings):
            raise ConfigError(
                f"{', '.join(sorted(settings))} would go to the chat template.",
                cure="Put sampling settings into SamplingParams(...), the second argument.",
            )
        if self.tokenizer.chat_template is None:
            raise TemplateError("This model has no chat template.", cure="Use generate with a plain prompt.")
        return self.tokenizer.encode(render_chat(self.tokenizer, messages, **template_settings))

    def logits(self, prompt: Prompt) -> Tensor:
        """The model's logits at every position: fp32 [tokens, vocabulary], in CPU memory."""
        [rows] = self.engine.logits([self._token_ids(prompt)])
        return rows

    def close(self) -> None:
        """Free the model. A second call does nothing."""
        self._engine = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _token_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode_prompt(prompt)
        if not isinstance(prompt, Iterable):
            raise RequestError(f"The prompt is {prompt!r}.", cure="Give a text or a list of token ids.")
        return list(prompt)

    def _run(self, prompts: list[Prompt], params: list[SamplingParams]) -> list[RequestOutput]:
        engine, made = self.engine, list[list[Request]]()
        outputs: list[RequestOutput] = []
        try:
            for prompt, settings in zip(prompts, params, strict=True):
                output, requests = self._submit(prompt, settings)
                outputs.append(output)
                made.append(requests)
            while any(not request.finished for requests in made for request in requests):
                engine.step()
        finally:  # an interrupted cell leaves nothing behind
            for request in (request for requests in made for request in requests):
                engine.abort(request)
        for output, requests in zip(outputs, made, strict=True):
            output.completions = [request.completion() for request in requests]
            output.error = output.error or next((r.error for r in requests if r.error), None)
        return outputs

    def _submit(self, prompt: Prompt, params: SamplingParams) -> tuple[RequestOutput, list[Request]]:
        text, ids = (prompt if isinstance(prompt, str) else None), list[int]()
        try:
            ids = self._token_ids(prompt)
            return RequestOutput(text, ids, []), self.engine.submit(ids, params)
        except LabkitError as error:
            return RequestOutput(text, ids, [], error), []


def _is_prompt(prompts: Any) -> bool:
    if isinstance(prompts, str) or not isinstance(prompts, Iterable):
        return isinstance(prompts, str)
    return bool(prompts) and all(isinstance(item, (int, float)) for item in prompts)


def _params_for(
    prompts: list[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * len(prompts)
    if not isinstance(params, (list, tuple)) or not all(isinstance(p, SamplingParams) for p in params):
        raise ConfigError(f"The sampling params are {params!r}.", cure="Give SamplingParams(...), or a list of them.")
    if len(params) != len(prompts):
        raise ConfigError(
            f"{len(params)} sampling params for {len(prompts)} prompts.", cure="Give one, or one for each prompt."
        )
    return list(params)
