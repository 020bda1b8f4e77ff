"""gdn_prefill's machine code for a V100, its work on the tensor cores, bank conflicts, and which rung is chosen."""

from __future__ import annotations

import pytest
from helpers.ops_gdn_prefill import Inputs, one_key, random_inputs

from labkit.device import Kernel, use_executor
from labkit.device.machine_code import decode
from labkit.device.nvrtc import find_nvrtc
from labkit.device.occupancy import v100_occupancy
from labkit.device.sim_executor import recorded_launches
from labkit.ops import gdn_prefill
from labkit.ops.gdn_prefill import RUNGS, WITHIN_THREADS, macros
from labkit.ops.layout import CHUNK, GDN_DIMS
from labkit.sim.counters import Counters

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")

FLOPS = 2048  # of one mma.m8n8k4, which is four HMMA


@pytest.mark.parametrize(("v100", "rung"), [(True, "3_tensor_cores"), (False, "2_chunked")])
def test_the_default_depends_on_the_gpu(v100: bool, rung: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []
    monkeypatch.setattr(gdn_prefill, "is_v100", lambda device: v100)
    monkeypatch.setattr(Kernel, "launch", lambda self, *arguments: launched.append(self.rung))
    with use_executor("sim"):
        random_inputs(((3,), (0,), 1, 1, 64, 64)).run()
    assert launched == [rung, rung]


@pytest.mark.parametrize("dims", [(dk, dv) for dk in GDN_DIMS for dv in GDN_DIMS], ids=str)
@pytest.mark.parametrize("rung", RUNGS)
def test_no_spills_and_enough_blocks(rung: str, dims: tuple[int, int]) -> None:
    resources = Kernel("gdn_prefill", rung, "gdn_prefill", macros(*dims)).image.resources["sm_70"]
    assert set(resources) == ({"gdn_prefill"} if rung == "1_recurrent" else {"gdn_prefill", "gdn_within_chunks"})
    for entry, needs in resources.items():
        assert needs.spill_stores == needs.spill_loads == 0, entry
        threads = {"1_recurrent": dims[1], "3_tensor_cores": 2 * dims[0]}.get(rung, WITHIN_THREADS)
        threads = WITHIN_THREADS if entry == "gdn_within_chunks" else threads
        assert v100_occupancy(threads, needs.registers, needs.shared_bytes).blocks >= 2, entry


def counted(inputs: Inputs) -> list[Counters]:
    """Of the two launches."""
    with use_executor("sim"), recorded_launches() as results:
        inputs.run("3_tensor_cores")
    assert all(result.ok for result in results), results
    within, scan = (result.counters for result in results)
    assert within is not None and scan is not None
    return [within, scan]


def products(*sizes: tuple[int, int, int]) -> int:
    """mma that products of [m, k] by [k, n] need at least."""
    return sum(2 * m * k * n for m, k, n in sizes) // FLOPS


@pytest.mark.parametrize(("dk", "dv"), [(64, 64), (128, 64), (128, 128)])
def test_tensor_instructions_are_those_of_the_arithmetic(dk: int, dv: int, seed: int) -> None:
    """66 rows are two chunks."""
    within, scan = counted(random_inputs(((66,), (0,), 1, 1, dk, dv)))
    assert within.mma == 2 * products((2 * CHUNK, dk, CHUNK))  # k k^T and q k^T
    assert scan.mma == 2 * products((2 * CHUNK, dk, dv), (CHUNK, CHUNK, dv), (dk, CHUNK, dv))
    assert scan.shared_load.requests and scan.shared_store.requests
    for (file, line), counts in scan.by_line().items():
        assert counts.shared_load.conflicts == counts.shared_store.conflicts == 0, f"{file}:{line}"


def test_where_keys_repeat_deltas_are_multiplied_as_two_halves(seed: int) -> None:
    """In the first chunk, that is; two rows are not many."""
    inputs = random_inputs(((66,), (0,), 1, 1, 64, 64))
    one_key(inputs, 0.0)
    _, scan = counted(inputs)
    on_state, on_deltas = products((2 * CHUNK, 64, 64)), products((CHUNK, CHUNK, 64), (64, CHUNK, 64))
    assert scan.mma == 2 * on_state + 3 * on_deltas


@pytest.mark.parametrize("dk", GDN_DIMS)
def test_the_scan_moves_no_operands_between_registers(dk: int) -> None:
    """In the machine code: its two loops are unrolled by four, and eight pieces of k are half or a quarter of them."""
    cubin = Kernel("gdn_prefill", "3_tensor_cores", "gdn_prefill", macros(dk, 64)).image.cubins["sm_70"]
    names = [each.name for each in decode(cubin, "gdn_prefill")]
    warps, loops = dk // 16, (dk // 8 // 4, 2)
    state = products((2 * CHUNK, dk, 32)) // warps // loops[0]
    deltas = products((CHUNK + dk, CHUNK, 32)) // warps // loops[1]
    assert names.count("HMMA") == 4 * (state + deltas)
