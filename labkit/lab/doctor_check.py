"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

PACKAGE, CHECKOUT = "'labkit-v100[{extra}]'", "-e '.[{extra}]'"


def install(extra: str, checkout: bool) -> str:
    """The command that installs an extra; in a checkout it is to be given in its folder.

    The extra for GPUs goes without constraints.txt, whose torch knows no V100.
    """
    constraints = "-c constraints.txt " if checkout and extra != "gpu" else ""
    return f"python -m pip install {constraints}{(CHECKOUT if checkout else PACKAGE).format(extra=extra)}"


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
