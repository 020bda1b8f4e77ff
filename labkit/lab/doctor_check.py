"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

INSTALL = "python -m pip install 'labkit-v100[{extra}]'"


class Status(StrEnum):
    """OK; INFO: good to know, nothing is missing for what labkit does here; WARN: a gap; FAIL: will not work."""

    OK = "ok"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, how it stands, what was found, and what to do about it ("" if nothing)."""

    name: str
    status: Status
    detail: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.status.value:4}  {self.name}: {self.detail}" + (f"  -> {self.cure}" if self.cure else "")

    def to_dict(self) -> dict[str, str]:
        return {**asdict(self), "status": self.status.value}
