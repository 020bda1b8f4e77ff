"""The assembler's report, and the occupancy that follows from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.device.compile import compile_source
from labkit.device.nvrtc import find_nvrtc
from labkit.device.occupancy import MAX_WARPS, REGISTERS, SHARED_BYTES, v100_occupancy
from labkit.device.resources import Resources, parse_report

needs_nvrtc = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")

# Two forms: of the library, and of the ptxas program.
LIBRARY = """
ptxas info    : 24 bytes gmem, 72 bytes cmem[4]
ptxas info    : Compiling entry function 'first' for 'sm_70'
ptxas info    : Function properties for first
ptxas         .     32 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 32 bytes cumulative stack size, 4128 bytes smem, 380 bytes cmem[0]
ptxas info    : Compile time = 16.851 ms
ptxas info    : Compiling entry function 'second' for 'sm_70'
ptxas info    : Function properties for second
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, 356 bytes cmem[0]
"""
PROGRAM = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'third' for 'sm_90'
ptxas info    : Function properties for third
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Function properties for _Z6helperf
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 2 barriers, 8 bytes cumulative stack size, 128 bytes smem
"""


def test_both_forms_of_the_report() -> None:
    assert parse_report(LIBRARY) == {
        "first": Resources(255, 12, 20, 4128, 32, 1),
        "second": Resources(8, 0, 0, 0, 0, 0),
    }
    assert parse_report(PROGRAM) == {"third": Resources(30, 4, 4, 128, 8, 2)}
    assert parse_report("warning: nothing of the kind\n") == {}


@needs_nvrtc
def test_spills_are_seen() -> None:
    loads = "".join(f"float a{i} = x[{i} * n];" for i in range(60))
    stores = "".join(f"x[{i} * n + 1] = a{i} * a{(i * 7) % 60};" for i in range(60))
    head = 'extern "C" __global__ void __launch_bounds__(1024, 2) k(float* x, int n)'
    text = f"{head} {{ {loads} __syncthreads(); {stores} }}"
    needs = compile_source(text).resources["k"]
    assert needs.registers <= 32 and needs.spill_stores > 0 and needs.spill_loads > 0


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks", "limit"),
    [
        (256, 32, 0, 8, "warps"),
        (256, 33, 0, 6, "registers"),  # 40 after rounding: 12 warps a sub-core, 48 in all
        (256, 64, 0, 4, "registers"),
        (256, 255, 0, 1, "registers"),
        (1024, 64, 0, 1, "registers"),
        (1024, 65, 0, 0, "registers"),
        (32, 16, 0, 32, "blocks"),
        (128, 32, 49_152, 2, "shared memory"),
        (128, 32, 98_304, 1, "shared memory"),
        (128, 32, 98_305, 0, "shared memory"),
        (33, 16, 0, 32, "warps"),  # two warps each
    ],
)
def test_occupancy_by_hand(threads: int, registers: int, shared: int, blocks: int, limit: str) -> None:
    found = v100_occupancy(threads, registers, shared)
    assert (found.blocks, found.limit) == (blocks, limit)
    assert found.warps == blocks * -(-threads // 32)
    assert found.fraction == found.warps / 64


@given(st.integers(1, 1024), st.integers(1, 255), st.integers(0, 98_304))
def test_what_is_resident_fits(threads: int, registers: int, shared: int) -> None:
    found = v100_occupancy(threads, registers, shared)
    assert found.warps <= MAX_WARPS and found.blocks <= 32
    assert found.blocks * shared <= SHARED_BYTES
    assert found.blocks * -(-threads // 32) * 32 * registers <= REGISTERS
    less = v100_occupancy(threads, max(registers - 8, 1), shared // 2)
    assert less.blocks >= found.blocks


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_blocks_that_cannot_be(threads: int) -> None:
    with pytest.raises(ValueError, match="1 to 1024"):
        v100_occupancy(threads, 32, 0)
