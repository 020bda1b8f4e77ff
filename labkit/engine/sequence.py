"""One request on its way through the engine: its tokens and what exists of them in the caches.

A sequence is plain data. The scheduler moves it between ``waiting`` and ``running`` and keeps its page table; the
runner reads tokens and page table; nobody else writes to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto


class Status(Enum):
    """Where a sequence stands: queued, holding a slot and pages, or done."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class FinishReason(StrEnum):
    """Why a sequence ended: an end token or stop string, a length limit, the user, or a failed step."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(eq=False)
class Sequence:
    """Tokens and cache bookkeeping of one request; compared by identity.

    seq_id: unique among the live sequences of one scheduler.
    prompt_ids, output_ids: token ids given and generated.
    max_tokens: tokens to generate at most.
    num_computed: leading tokens whose KV (and GDN state) exists.
    prefill_len: tokens it had when it was last admitted; up to there it prefills, beyond it decodes.
    pages: page table, page ``i`` holds the tokens ``[64 i, 64 i + 64)``.
    slot: row of the GDN state pool, held while RUNNING.
    arrival: set when the scheduler takes it; smaller is older.
    """

    seq_id: int
    prompt_ids: list[int]
    max_tokens: int
    output_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    prefill_len: int = 0
    pages: list[int] = field(default_factory=list)
    slot: int | None = None
    status: Status = Status.WAITING
    finish_reason: FinishReason | None = None
    num_preemptions: int = 0
    arrival: int = 0

    def __len__(self) -> int:
        """Tokens of prompt and output together."""
        return len(self.prompt_ids) + len(self.output_ids)

    def token_ids(self, start: int, stop: int) -> list[int]:
        """The tokens at positions ``[start, stop)``, copying no more than asked for."""
        prompt = len(self.prompt_ids)
        return self.prompt_ids[start:stop] + self.output_ids[max(start - prompt, 0) : max(stop - prompt, 0)]

    @property
    def num_uncomputed(self) -> int:
        """Tokens at the end whose KV does not exist yet."""
        return len(self) - self.num_computed

    @property
    def decoding(self) -> bool:
        """True once its prefill is done: each further step computes the one token sampled last."""
        return self.status is Status.RUNNING and self.num_computed >= self.prefill_len
