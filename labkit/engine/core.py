"""The engine: takes requests, and at each step schedules, runs, samples and hands out the news.

Sequence -> Scheduler.schedule() -> Batch -> Runner.run() -> logits -> sample() -> Scheduler.postprocess()
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Sequence as ReadOnly
from typing import Any

import torch

from labkit.device import use_executor
from labkit.engine.config import EngineConfig
from labkit.engine.interrupts import uninterrupted
from labkit.engine.open_tokenizer import open_tokenizer
from labkit.engine.request import Request, Update
from labkit.engine.runner import Runner, StepLogits
from labkit.engine.sampler import SampledToken, SampleRequest, check_token_ids, draw_seed, sample
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.scheduler import Batch, Scheduler, SchedulerConfig
from labkit.engine.sequence import FinishReason, Sequence
from labkit.engine.sizing import check_sparse, number_of_pages, sequence_limit
from labkit.engine.text_stream import TextStream
from labkit.engine.tokenizer import Tokenizer
from labkit.errors import LabkitError, RequestError, TokenizerError
from labkit.model.config import ModelConfig
from labkit.model.loader import load_model
from labkit.model.resolve import resolve_model
from labkit.model.weights import Progress

logger = logging.getLogger("labkit")


class Engine:
    """Serves many requests at once on one model.

    Threads may share it: a lock lets one at a time submit, step or abort, and a step serves everybody's requests.

    Raises ConfigError, ExecutorError, ModelNotFoundError, CheckpointError, UnsupportedModelError or KernelBuildError
    when made.
    """

    def __init__(self, config: EngineConfig, progress: Progress | None = None) -> None:
        self.config, placement = config, config.placement  # whether it can run here, before anything is fetched
        path = resolve_model(str(config.model), progress=progress)
        settings: dict[str, Any] = {"quantize_leftovers": config.quantize_leftovers, "device": placement.device}
        with use_executor(placement.executor):  # it decides in which order the weights are kept
            model, self.checkpoint = load_model(path, config.torch_dtype, progress, **settings)
        for finding in self.checkpoint.report.ranges:
            if not finding.kept_half:
                logger.warning("%s", finding)
        self.model_config: ModelConfig = model.config
        self.tokenizer: Tokenizer | None = open_tokenizer(self.checkpoint)
        self.max_seq_len = sequence_limit(config, model.config)
        check_sparse(config, self.max_seq_len)
        self.num_pages = number_of_pages(config, model.config, self.max_seq_len)
        dtypes = config.torch_dtype, config.kv_format
        self.runner = Runner(
            model, self.num_pages, config.decode_batch_size, *dtypes, executor=placement.executor, sparse=config.sparse
        )
        self.scheduler = Scheduler(
            SchedulerConfig(
                num_pages=self.num_pages,
                max_running=config.decode_batch_size,
                max_seq_len=self.max_seq_len,
                prefill_tokens=config.prefill_tokens,
                mixed_prefill_tokens=config.mixed_prefill_tokens,
                sparse_threshold=config.sparse.threshold if config.sparse else None,
            )
        )
        self.requests: dict[int, Request] = {}
        self.peak_pages = 0
        self._lock = threading.RLock()
        self._ids = itertools.count()
        self._logits_of: dict[int, list[torch.Tensor]] = {}

    @property
    def num_valid(self) -> int:
        """Token ids that may be sampled: rows of the head beyond the tokenizer are padding."""
        rows = self.model_config.vocab_size
        return min(rows, self.tokenizer.vocab_size) if self.tokenizer else rows

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The model's own end tokens."""
        if self.tokenizer:
            return self.tokenizer.eos_ids
        listed = self.checkpoint.generation_config.get("eos_token_id")
        own = listed if isinstance(listed, list) else [listed]
        ids = (*(i for i in own if isinstance(i, int)), *self.model_config.eos_token_ids)
        return tuple(dict.fromkeys(i for i in ids if 0 <= i < self.model_config.vocab_size))

    @property
    def has_work(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self.requests)

    # Requests

    def submit(self, prompt_ids: ReadOnly[int], params: SamplingParams) -> list[Request]:
        """Queue a prompt; returns its n answers in the making.

        Raises RequestError (or a subclass), ConfigError or TokenizerError if it can never be served;
        the other requests go on.
        """
        with self._lock, uninterrupted():
            return self._submit(prompt_ids, params)

    def _submit(self, prompt_ids: ReadOnly[int], params: SamplingParams) -> list[Request]:
        self._check(prompt_ids, params)
        seed = draw_seed() if params.seed is None else params.seed
        made = [self._make_request(list(prompt_ids), params, seed, choice) for choice in range(params.n)]
        self.scheduler.add(made[0].seq)  # refuses what is impossible; the others are the same size
        for request in made[1:]:
            self.scheduler.add(request.seq)
        self.requests.update((request.id, request) for request in made)
        return made

    def abort(self, request: Request) -> None:
        """End a request, in whatever state it is; a second call does nothing."""
        with self._lock, uninterrupted():
            if self.scheduler.abort(request.id) is not None:
                request.close()
            self.requests.pop(request.id, None)

    def _make_request(self, prompt_ids: list[int], params: SamplingParams, seed: int, choice: int) -> Request:
        seq = Sequence(next(self._ids), prompt_ids, params.max_tokens)
        end_ids = (*(() if params.ignore_eos else self.eos_ids), *params.stop_token_ids)
        sampling = SampleRequest(params, seq.prompt_ids, seq.output_ids, seed, choice, end_ids)
        stream = TextStream(self.tokenizer, params) if self.tokenizer else None
        return Request(seq, params, sampling, frozenset(self.eos_ids), stream)

    def _check(self, prompt_ids: ReadOnly[int], params: SamplingParams) -> None:
        check_token_ids(params, self.num_valid)
        if params.stop and self.tokenizer is None:
            raise TokenizerError("Stop strings need a tokenizer, which this checkpoint has not.", cure=NO_TOKENIZER)
        rows = self.model_config.vocab_size
        for token in prompt_ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < rows:
                raise RequestError(f"The prompt holds {token!r}.", cure=f"Token ids are whole numbers under {rows}.")

    # A step

    def step(self) -> list[Update]:
        """Compute one batch. Returns the news of every request that got a token or ended.

        If the model fails or the user interrupts, the requests of the batch are set back to recompute, so that
        nothing half-written is ever read; the exception goes on to the caller.
        """
        with self._lock:
            return self._step() if self.has_work else []

    def _step(self) -> list[Update]:
        with uninterrupted():
            batch = self.scheduler.schedule()
            self.peak_pages = max(self.peak_pages, self.num_pages - self.scheduler.pages.num_free)
        try:
            result = self._run(batch)
            picked = self._sample(result)
        except BaseException:
            self._undo(batch)
            raise
        with uninterrupted():
            return self._postprocess(batch, result, picked)

    def _run(self, batch: Batch) -> StepLogits:
        now = time.perf_counter()
        for chunk in batch.chunks:
            metrics = self.requests[chunk.seq.seq_id].metrics
            metrics.first_scheduled = metrics.first_scheduled or now
        return self.runner.run(batch, self._logits_of)

    def _sample(self, result: StepLogits) -> list[SampledToken | LabkitError]:
        if not result.sampled:
            return []
        rows = [self.requests[chunk.seq.seq_id].sampling for chunk in result.sampled]
        return sample(result.logits, rows, num_valid=self.num_valid)

    def _undo(self, batch: Batch) -> None:
        with uninterrupted():
            self.scheduler.rollback(batch)
            for chunk in batch.chunks:
                if chunk.seq.seq_id in self._logits_of:
                    self._logits_of[chunk.seq.seq_id].clear()

    def _postprocess(self, batch: Batch, result: StepLogits, picked: list[SampledToken | LabkitError]) -> list[Update]:
        for seq in batch.preempted:
            if seq.seq_id in self._logits_of:
                self._logits_of[seq.seq_id].clear()
        for seq_id, rows in result.every_row.items():
            self._logits_of[seq_id].append(rows)
        requests = [self.requests[chunk.seq.seq_id] for chunk in result.sampled]
        failed = [(r, p) for r, p in zip(requests, picked, strict=True) if isinstance(p, LabkitError)]
        for request, error in failed:
            self._fail(request, error)
        tokens = {r.id: p for r, p in zip(requests, picked, strict=True) if isinstance(p, SampledToken)}
        self.scheduler.postprocess(batch, {seq_id: token.token for seq_id, token in tokens.items()})
        updates = [self._advance(self.requests[seq_id], token) for seq_id, token in tokens.items()]
        return updates + [Update(request, None, request.close(), True) for request, _ in failed]

    def _advance(self, request: Request, token: SampledToken) -> Update:
        text, ended = request.take(token)
        if ended:
            self.scheduler.finish(request.seq, FinishReason.STOP)
        if request.seq.finish_reason is not None:
            text += request.close()
            del self.requests[request.id]
        return Update(request, token, text, request.finished)

    def _fail(self, request: Request, error: LabkitError) -> None:
        request.error = error
        self.scheduler.finish(request.seq, FinishReason.ERROR)
        del self.requests[request.id]

    # Logits of whole prompts

    def logits(self, prompts: ReadOnly[ReadOnly[int]]) -> list[torch.Tensor]:
        """fp32 [tokens, V] in CPU memory for each prompt: the model's logits at every position, through the paged path.

        The prompts run together, in as many steps as the budget asks for; other requests advance in the same steps.
        """
        made: list[Request] = []
        try:
            for prompt in prompts:
                with self._lock:  # no step between the two lines
                    made += self.submit(prompt, SamplingParams(temperature=0, max_tokens=1))
                    self._logits_of[made[-1].id] = []
            rows = [self._logits_of[request.id] for request in made]
            while any(not request.finished for request in made):
                self.step()
        finally:
            for request in made:
                self.abort(request)
                self._logits_of.pop(request.id, None)
        for request in made:
            if request.error:
                raise request.error
        return [torch.cat(parts) for parts in rows]


NO_TOKENIZER = "Put its tokenizer.json beside the weights, or pass token ids."
