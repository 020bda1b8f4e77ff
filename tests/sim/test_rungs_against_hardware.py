"""Every rung of every kernel ladder gives on the simulator what an H200 gave from the same PTX and inputs."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.ops import SMALL, cases
from sim.hardware import store
from sim.hardware.rungs import RungLaunch, load_launches
from sim.hardware.simulate import simulate_rung

LAUNCHES = load_launches()
# The assembler may fuse a product and a sum of a whole kernel; exponentials and roots are approximations.
TOLERANCES = {"float16": 2e-3, "float32": 2e-6}
# Attention adds up weights times values of the order of 1: a sum may be small, and an approximate exponential may move
# a weight to the next half.
OF_SUMS = {"attention_decode": 5e-4, "attention_prefill": 5e-4}


# Sums over a state, whose sizes differ from head to head: judged by the largest of their 64 neighbours. Halves of sums
# are operands of the tensor cores' next product, and may be the next half.
BY_NEIGHBOURS = {"gdn_decode": 2e-5, "gdn_prefill/1_recurrent": 2e-5, "gdn_prefill/2_chunked": 2e-5}
BY_NEIGHBOURS["gdn_prefill/3_tensor_cores"] = 2e-3


@pytest.fixture(scope="module")
def recording() -> store.Recording:
    return store.load(store.RECORDED / "rungs.npz")


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch.name.replace(" ", "_"))
def test_rung_gives_what_the_hardware_gave(launch: RungLaunch, recording: store.Recording) -> None:
    changed = [number for number, _ in enumerate(launch.arguments) if f"{launch.name}/{number}" in recording.entries]
    assert changed
    operation = launch.name.partition("/")[0]
    for number, ours in simulate_rung(launch).items():
        before = launch.arguments[number]
        assert not isinstance(before, np.generic)
        if number not in changed:  # not recorded, since it stayed as it was
            np.testing.assert_array_equal(ours, before[0])
            continue
        theirs = recording.result(f"{launch.name}/{number}", launch.checksum)
        dtype = launch.arguments[number][2]
        if dtype not in TOLERANCES:
            np.testing.assert_array_equal(ours, theirs)
            continue
        left, right = (raw.view(dtype).astype(np.float64) for raw in (ours, theirs))
        rung = launch.name.split(" ")[0]
        if share := BY_NEIGHBOURS.get(rung, BY_NEIGHBOURS.get(operation)):
            close_to_neighbours(left, right, max(share, TOLERANCES[dtype]))
        else:
            np.testing.assert_allclose(left, right, rtol=TOLERANCES[dtype], atol=OF_SUMS.get(operation, 1e-7))


def close_to_neighbours(ours: np.ndarray, theirs: np.ndarray, share: float) -> None:
    """Off by ``share`` of the largest in each 64 at most; NaN where there is NaN."""
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    padding = -len(ours) % 64
    left, right = (np.pad(np.nan_to_num(x), (0, padding)).reshape(-1, 64) for x in (ours, theirs))
    allowed = share * np.abs(right).max(axis=1, keepdims=True)
    assert (np.abs(left - right) <= allowed).all(), (
        f"off by {(np.abs(left - right) - allowed).max():.2e} more than that"
    )


def test_every_rung_is_recorded() -> None:
    recorded = {launch.name.split(" ")[0] for launch in LAUNCHES}
    missing = {f"{op}/{rung}" for op, rung, _ in cases(SMALL)} - recorded
    assert not missing, f"{sorted(missing)}: run tests/sim/hardware/record.py --compile, then --out on a GPU"
