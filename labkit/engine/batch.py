"""What the scheduler hands to the runner: the work of one step."""

from __future__ import annotations

from dataclasses import dataclass, field

from labkit.engine.sequence import Sequence


@dataclass(frozen=True)
class Chunk:
    """The tokens ``[start, start + length)`` of one sequence, computed in one step.

    sparse: its tokens belong to a prompt that prefills sparsely; they are whole tiles of it, or reach to its end.
    samples: its last row yields a token. Fixed here, because the sequence has grown once the step is done.
    """

    seq: Sequence
    start: int
    length: int
    sparse: bool = False
    samples: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", self.start + self.length == len(self.seq))


@dataclass(frozen=True)
class Batch:
    """One step's work: ``num_decodes`` chunks of one token, then prefill chunks, each in order of arrival."""

    chunks: tuple[Chunk, ...]
    num_decodes: int
    preempted: tuple[Sequence, ...]
    step: int

    @property
    def num_tokens(self) -> int:
        """Rows of the model's input in this step."""
        return sum(chunk.length for chunk in self.chunks)

    def __bool__(self) -> bool:
        return bool(self.chunks)
