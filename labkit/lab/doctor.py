"""``labkit doctor``: what this machine can do, and the cure for each gap.

report = diagnose()
report.render(Console())     # in a terminal
report                       # as the last line of a notebook cell
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from labkit.lab.doctor_checks import Check, Status, all_checks
from labkit.lab.doctor_facts import Facts, gather

# Whatever else is missing, the chapters run with these.
ESSENTIAL = ("python", "torch", "executor torch", "model labkit-tiny")
STYLES = {Status.OK: "green", Status.INFO: "blue", Status.WARN: "yellow", Status.FAIL: "bold red"}


@dataclass(frozen=True)
class Report:
    """The checks of one machine."""

    checks: tuple[Check, ...]

    @property
    def ok_to_learn(self) -> bool:
        """Whether the notebooks and the demo will run here."""
        return all(check.status is not Status.FAIL for check in self.checks if check.name in ESSENTIAL)

    @property
    def gaps(self) -> tuple[Check, ...]:
        """What is wrong, the worst first."""
        wrong = [check for check in self.checks if check.status in (Status.WARN, Status.FAIL)]
        return tuple(sorted(wrong, key=lambda check: check.status is not Status.FAIL))

    def __getitem__(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if not self.ok_to_learn:
            return "This machine cannot run labkit yet: see the lines marked fail."
        return f"Ready, with {len(self.gaps)} gap(s)." if self.gaps else "Ready."

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        checks = [check.to_dict() for check in self.checks]
        return {"ok_to_learn": self.ok_to_learn, "verdict": self.verdict, "checks": checks}

    def render(self, console: Console) -> None:
        """Print the report as a table, and below it what to do, in lines that can be copied."""
        table = Table(title="labkit doctor", caption=self.verdict)
        for heading in ("check", "status", "found"):
            table.add_column(heading, overflow="fold")
        for check in self.checks:
            status = Text(check.status.value, style=STYLES[check.status])
            table.add_row(Text(check.name), status, Text(check.detail))
        console.print(table)
        for check in self.checks:
            if check.cure:
                console.print(Text(f"{check.name}: {check.cure}"), soft_wrap=True)

    def __str__(self) -> str:
        lines = (
            f"{c.status.value:4}  {c.name}: {c.detail}" + (f"  -> {c.cure}" if c.cure else "") for c in self.checks
        )
        return "\n".join([*lines, self.verdict])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """For notebooks: an HTML table, and plain text for front ends that show nothing else."""
        cells = ([check.name, check.status.value, check.detail, check.cure] for check in self.checks)
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
        heads = "".join(f'<th scope="col">{name}</th>' for name in ("check", "status", "found", "what to do"))
        caption = f"<caption>{escape(self.verdict)}</caption>"
        html = f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        return {"text/html": html, "text/plain": str(self)}


def diagnose(facts: Facts | None = None) -> Report:
    """Examine this machine, or the one described by ``facts``."""
    return Report(all_checks(facts or gather()))
