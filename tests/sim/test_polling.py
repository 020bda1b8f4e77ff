"""Which loads count as looks at a flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.sim.polling import polling_lines
from labkit.sim.source import load_program

HEAD = 'extern "C" __global__ void k(volatile int* f, volatile int* d, int* y, int n) {\n'
ENDS = {
    "while (*f == 0) {}": True,
    "while (*f == 0) __nanosleep(20);": True,
    "while (!__any_sync(~0u, *f)) {}": True,
    "for (int i = 0; i < n && !*f; i++) y[i] = i;": True,
    "do { if (*f > n) break; y[0] += 1; } while (true);": True,
    "int sum = 0; for (int i = 0; i < n; i++) sum += f[i]; y[0] = sum;": False,
    "if (*f) y[0] = 1;": False,
    "y[0] = *f;": False,
    "for (int i = 0; i < n; i++) d[i] = f[i] + 1;": False,
}


@pytest.mark.parametrize("line", ENDS)
def test_only_loads_that_decide_a_loop_are_looks_at_a_flag(line: str, tmp_path: Path) -> None:
    file = tmp_path / "k.cu"
    file.write_text(HEAD + line + "\n}\n")
    lines = {number for _, number, _ in polling_lines(load_program(file).kernel)}
    assert lines == ({2} if ENDS[line] else set())
