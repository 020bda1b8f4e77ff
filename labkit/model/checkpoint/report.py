"""What loading a checkpoint found out: nothing is repaired or left out in silence."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RangeFinding:
    """A tensor with values that do not fit float16; it is kept in float32 unless they do not matter.

    overflowing: entries above 65504 in size; flushing: entries that are not 0 but would become 0.
    kept_half: the flushing entries are as few as chance puts next to 0, and the matrix is used in float16.
    """

    name: str
    overflowing: int
    flushing: int
    kept_half: bool = False

    def __str__(self) -> str:
        if self.kept_half:
            return f"{self.name}: {self.flushing} entries next to 0 become 0 in float16, as few as chance explains."
        return (
            f"{self.name}: in float16 {self.overflowing} entries would overflow and {self.flushing} would become 0; "
            "kept in float32."
        )


@dataclass
class LoadReport:
    """Notes collected while loading, in order; ``str()`` gives them one a line."""

    notes: list[str] = field(default_factory=list)
    ranges: list[RangeFinding] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a sentence, once."""
        if text not in self.notes:
            self.notes.append(text)

    def out_of_range(self, finding: RangeFinding) -> None:
        """Add a range finding, once."""
        if finding not in self.ranges:
            self.ranges.append(finding)
            self.note(str(finding))

    def __str__(self) -> str:
        return "\n".join(self.notes)
