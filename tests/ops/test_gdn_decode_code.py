"""gdn_decode: its machine code for a V100, how often a state travels, and deletions that must be noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import mutants
import pytest
from helpers.ops_gdn_decode import SMALL, check_gdn_decode, draw_inputs

from labkit.device import Kernel, sources, use_executor
from labkit.device.nvrtc import find_nvrtc
from labkit.device.sim_executor import recorded_launches
from labkit.ops.gdn_decode import RUNGS, macros
from labkit.ops.layout import GDN_DIMS
from labkit.sim.counts import SiteCounts

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")
SIZES = [(key_dim, value_dim) for key_dim in GDN_DIMS for value_dim in GDN_DIMS]


@pytest.mark.parametrize(("key_dim", "value_dim"), SIZES)
@pytest.mark.parametrize("rung", RUNGS)
def test_no_spills(rung: str, key_dim: int, value_dim: int) -> None:
    """And two blocks of 256 threads on a multiprocessor's 65,536 registers."""
    [needs] = Kernel("gdn_decode", rung, "gdn_decode", macros(key_dim, value_dim)).image.resources["sm_70"].values()
    assert needs.spill_stores == needs.spill_loads == needs.stack_bytes == 0
    assert needs.registers <= 128 and needs.shared_bytes <= 12 * 1024


def counted(rung: str, fresh: int, key_dim: int, value_dim: int) -> SiteCounts:
    """Of a step of two sequences with two heads each, of which ``fresh`` have seen nothing."""
    with use_executor("sim"), recorded_launches() as results:
        draw_inputs((2, fresh, 1, 2, key_dim, value_dim, 0)).run(rung)
    [result] = results
    assert result.ok and result.counters is not None, result
    return result.counters.total()


@pytest.mark.parametrize(("key_dim", "value_dim"), SIZES)
@pytest.mark.parametrize("rung", RUNGS)
def test_how_often_the_state_travels(rung: str, key_dim: int, value_dim: int, seed: int) -> None:
    """Read once and written once, but for the first rung; whole sectors; a fresh sequence's state is not read."""
    states, out = 4 * key_dim * value_dim * 4, 4 * value_dim * 2
    old, new = (counted(rung, fresh, key_dim, value_dim) for fresh in (0, 2))
    again = 2 if rung == RUNGS[0] else 1
    assert old.global_load.useful_bytes - new.global_load.useful_bytes == again * states
    assert old.global_load.sectors - new.global_load.sectors == again * states // 32
    for counts in (old, new):
        assert counts.global_store.useful_bytes == counts.global_store.sectors * 32 == states + out
        assert counts.shared_load.conflicts == counts.shared_store.conflicts == 0
    if rung == RUNGS[-1]:  # 16 bytes a lane
        requests = old.global_load.requests - new.global_load.requests
        assert requests == states // (32 * 16)
        assert old.global_store.requests == requests + out // (32 * 2)


# --- deletions --------------------------------------------------------------------------------------------------------

BARRIER = "__syncthreads();"
FRESH = "fresh = starts[row] == 0;"
DELETIONS: list[tuple[str, str, int, str, str]] = [
    # rung, file, which of the places that read so, as it is, as it becomes
    *(("2_one_pass", "2_one_pass.cu", n, BARRIER, ";") for n in range(3)),
    *(("3_wide", "3_wide.cu", n, BARRIER, ";") for n in range(2)),
    *(("3_wide", "3_wide.cu", n, "if (has_column()) ", "") for n in range(3)),
    *((rung, "step.cuh", 0, FRESH, "fresh = false;") for rung in RUNGS),
    *((rung, "step.cuh", 0, FRESH, "fresh = true;") for rung in RUNGS),
    ("3_wide", "step.cuh", 0, "slots[row]", "row"),
    ("3_wide", "step.cuh", 0, "static_cast<int>(blockIdx.x) / group", "0"),
    ("3_wide", "bands.cuh", 0, "fmaf(score, delta, of_q)", "of_q"),
]


@pytest.mark.parametrize("deletion", DELETIONS, ids=lambda given: "-".join(map(str, given[:4])))
def test_deletions_are_noticed(deletion: tuple[str, str, int, str, str], seed: int, tmp_path: Path) -> None:
    rung, file, place, before_it, after_it = deletion
    shutil.copytree(sources.source_root(), tmp_path, dirs_exist_ok=True)
    path = tmp_path / "gdn_decode" / file
    parts = path.read_text().split(before_it)
    assert len(parts) > place + 1
    path.write_text(before_it.join(parts[: place + 1]) + after_it + before_it.join(parts[place + 1 :]))
    shapes = SMALL["gdn_decode"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mutants, "check", lambda op, name, shape, device: check_gdn_decode(name, shape, device))
        told = [mutants.outcome(tmp_path, next(mutants.NUMBERS), "gdn_decode", rung, shape) for shape in shapes]
    assert any(what.startswith(("finding", "wrong")) for what in told) and "does not compile" not in told
