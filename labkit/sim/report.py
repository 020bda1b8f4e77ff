"""Counters for readers: a table, JSON, and the plain text of either."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from labkit.sim.coalescing import SECTOR
from labkit.sim.counters import Counters
from labkit.sim.counts import SharedTraffic, SiteCounts, Traffic

PLAIN_WIDTH = 100  # columns, where no terminal says how many there are


def counters_table(counters: Counters) -> Any:
    """The counters of a launch as a rich table: what, how much, and what that means."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1))
    table.add_column("counter")
    table.add_column("count", justify="right")
    table.add_column("what it means", style="dim")
    for row in _rows(counters):
        table.add_row(*row)
    return table


def _rows(counters: Counters) -> Iterator[tuple[str, str, str]]:
    total = counters.total()
    yield "warp instructions", _number(total.warp_instructions), f"{_number(total.thread_instructions)} by thread"
    for name, (warps, _) in counters.instructions().items():
        yield f"  {name}", _number(warps), ""
    for name in ("load", "store", "atomic"):
        traffic: Traffic = getattr(total, f"global_{name}")
        if traffic.requests:
            yield f"global {name} requests", _number(traffic.requests), ""
            per_request = f"{traffic.sectors_per_request:.2f} a request, {traffic.efficiency:.0%} of their bytes useful"
            yield f"global {name} sectors", _number(traffic.sectors), per_request
    read, written = counters.dram_read_bytes, counters.dram_write_bytes
    yield "DRAM bytes read", _number(read), f"{_number(read // SECTOR)} different sectors of {SECTOR} bytes"
    yield "DRAM bytes written", _number(written), f"{_number(written // SECTOR)} different sectors"
    for name in ("load", "store", "atomic"):
        shared: SharedTraffic = getattr(total, f"shared_{name}")
        if shared.requests:
            lost = f"{_number(shared.conflicts)} of them lost to bank conflicts"
            yield f"shared {name} requests", _number(shared.requests), ""
            yield f"shared {name} cycles", _number(shared.cycles), lost
    if total.constant_requests:
        yield "constant requests", _number(total.constant_requests), ""
    if total.local_requests:
        yield "local requests", _number(total.local_requests), f"{_number(total.local_bytes)} bytes"
    yield "branches", _number(total.branches), f"{_number(total.divergent_branches)} of them divide their warp"
    yield "block barriers", _number(counters.barriers), ""
    if total.atomics:
        yield "atomic operations", _number(total.atomics), "by thread"


def counters_json(counters: Counters) -> dict[str, Any]:
    """The counters of a launch as plain values."""
    total = counters.total()
    classes = counters.instructions()
    return {
        "instructions": {name: {"warps": warps, "threads": threads} for name, (warps, threads) in classes.items()},
        **_counts_json(total),
        "dram_read_bytes": counters.dram_read_bytes,
        "dram_write_bytes": counters.dram_write_bytes,
        "mma": counters.mma,
        "barriers": counters.barriers,
        "lines": [
            {"file": file, "line": line, **_counts_json(counts)}
            for (file, line), counts in counters.by_line().items()
            if counts.warp_instructions
        ],
    }


def _counts_json(counts: SiteCounts) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in vars(counts).items():
        if isinstance(value, Traffic):
            per_request = {"sectors_per_request": value.sectors_per_request, "efficiency": value.efficiency}
            result[name] = vars(value) | per_request
        elif isinstance(value, SharedTraffic):
            result[name] = vars(value) | {"conflicts": value.conflicts}
        else:
            result[name] = value
    return result


def plain(renderable: Any) -> str:
    """What rich would print, without colours."""
    from io import StringIO

    from rich.console import Console

    stream = StringIO()
    Console(file=stream, width=PLAIN_WIDTH, no_color=True, force_terminal=False).print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def _number(value: int) -> str:
    return f"{value:,}"
