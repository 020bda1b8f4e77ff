"""The annotated source: every line, with the counts of its instructions."""

from __future__ import annotations

import re

import numpy as np

from labkit.sim import annotate, run

SOURCE = """extern "C" __global__ void move(const float* x, float* y, int stride) {
  __shared__ float tile[32 * 32];
  int i = threadIdx.x;
  tile[32 * i] = x[i];
  __syncthreads();
  if (i < 8)
    y[stride * i] = tile[32 * i];
}
"""


def test_every_line_stands_with_its_counts() -> None:
    x, y = np.arange(32, dtype=np.float32), np.zeros(256, np.float32)
    result = run(SOURCE, block=32, args=[x, y, 8])
    assert result.ok and result.counters
    rows = annotate(SOURCE, result.counters).splitlines()
    assert [row.split("| ", 1)[1] for row in rows[1:9] if "| " in row] == SOURCE.splitlines()[:8]
    filled = re.split(r"\s+", rows[4].split(" 4 |")[0].strip())
    assert filled[1:] == ["4.0", "100%", "31"]  # sectors a request, useful, conflicts: 32 lanes meet one bank
    stored = re.split(r"\s+", rows[7].split(" 7 |")[0].strip())
    assert stored[1:4] == ["8", "8.0", "12%"]  # 8 lanes, a sector each
    assert rows[2].startswith(" " * 20)  # a declaration costs nothing
    assert annotate(SOURCE, result.counters) == result.annotated()


def test_lines_with_findings_are_marked() -> None:
    result = run(SOURCE, block=32, args=[np.zeros(32, np.float32), np.zeros(56, np.float32), 8])
    assert [finding.line for finding in result.findings] == [7]
    marked = [row for row in result.annotated().splitlines() if "!" in row.split("|")[0]]
    assert (
        len(marked) == 2
        and marked[0].endswith("y[stride * i] = tile[32 * i];")
        and marked[1].endswith("names this line")
    )


def test_lines_of_headers_do_not_mix_with_those_of_the_source() -> None:
    source = """#include <cuda_fp16.h>
extern "C" __global__ void k(half* x) {
  x[threadIdx.x] = hsqrt(x[threadIdx.x]);
}
"""
    x = np.ones(64, np.float16)
    result = run(source, args=[x])
    assert result.ok and result.counters
    own = {line for file, line in result.counters.by_line() if file == "kernel.cu"}
    assert own <= {2, 3, 4} and len(result.annotated().split("\n\n")[0].splitlines()) == 5
