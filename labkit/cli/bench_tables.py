"""How the commands that time operations show what they found."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def print_origin(console: Console, device: str, driver: str, torch: str, copy_gb_per_s: float) -> None:
    """Where the figures come from, and with what they compare."""
    console.print(f"{device}, driver {driver}, torch {torch}; measured in one run")
    console.print(f"A copy moves {copy_gb_per_s:,.0f} GB/s, bytes read plus written.")


def table_of(title: str, headings: tuple[str, ...]) -> Table:
    """An empty one for many narrow columns of numbers."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    return table
