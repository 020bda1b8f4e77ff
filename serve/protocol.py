"""What clients may send to /v1/chat/completions. Everything else is refused by name.

A null means the same as leaving the field out, and so do the values of `ChatRequest.neutral`, which some clients send.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from labkit.engine.sampling_params import MAX_LOGPROBS


class Strict(BaseModel):
    """No unknown field, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True)
    neutral: ClassVar[dict[str, Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        said = {name: value for name, value in data.items() if value is not None}
        return {name: value for name, value in said.items() if cls.neutral.get(name, ...) != value}


def _joined_text(content: Any) -> Any:
    """A list of text parts as one text."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or set(part) != {"type", "text"} or not isinstance(part["text"], str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise PydanticCustomError("text_part", "no part of type {kind}, only text", {"kind": repr(kind)})
    return "".join(part["text"] for part in content)


def _as_list(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


TokenId = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,10}$")]  # JSON keys are texts
StopStrings = Annotated[list[str], BeforeValidator(_as_list)]


class Message(Strict):
    """One turn of the conversation; a developer message is a system message by its newer name."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined_text)]

    def for_template(self) -> dict[str, str]:
        """As chat templates know it."""
        return {"role": "system" if self.role == "developer" else self.role, "content": self.content}


class StreamOptions(Strict):
    """include_usage: a last chunk with the token counts."""

    include_usage: bool = False


class ChatRequest(Strict):
    """The fields of OpenAI's API that this server honours, then labkit's own. SamplingParams checks the ranges."""

    neutral: ClassVar[dict[str, Any]] = {"response_format": {"type": "text"}, "tool_choice": "none", "store": False}

    model: str
    messages: Annotated[list[Message], Field(min_length=1)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: StopStrings | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[TokenId, float] | None = None
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    chat_template_kwargs: dict[str, Any] = {}

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatRequest:
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise _conflict("max_tokens and max_completion_tokens differ: give one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise _conflict("top_logprobs needs logprobs: true")
        if self.stream_options is not None and not self.stream:
            raise _conflict("stream_options needs stream: true")
        return self

    @property
    def include_usage(self) -> bool:
        """Whether a stream shall end with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage


def _conflict(message: str) -> PydanticCustomError:
    return PydanticCustomError("conflict", message)
