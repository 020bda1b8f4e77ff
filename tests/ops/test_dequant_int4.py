"""Dequantized weights: one rounding, ranges of tiles, full sectors, the product through a bounded workspace."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.accuracy import QUANTIZED, relative_error, shifted
from helpers.ops_dequant import exact_halves, random_weight
from torch import Tensor

from labkit.device import use_executor
from labkit.errors import KernelArgumentError, KernelBuildError
from labkit.lab.op_counts import count
from labkit.ops.dequant_int4 import RUNGS, dequant_int4, dequant_matmul
from labkit.ops.workspace import WORKSPACE_BYTES, HalfWorkspace
from labkit.quant.int4 import Form, Int4Weight
from labkit.quant.pack import TILE, PackedInt4, pack

KINDS: list[tuple[int, Form]] = [(128, "scale_zero"), (64, "scale_zero"), (32, "scale_zero"), (32, "scale_bias")]


def bits(halves: Tensor) -> Tensor:
    return halves.view(torch.int16)


def twice_rounded() -> Int4Weight:
    """q s + b just above the middle of two halves, 3 * 683 = 2049: fp32 drops b, and half then rounds down to 2048."""
    q = torch.full((32, 32), 3, dtype=torch.uint8)
    groups = torch.tensor([683, 2**-14]).half().expand(32, 1, 2).contiguous()
    return Int4Weight.from_nibbles(q, groups, "scale_bias")


@pytest.mark.parametrize("executor", ["torch", "sim"])
def test_one_rounding_where_two_would_differ(executor: str) -> None:
    weight = twice_rounded()
    assert torch.equal(weight.dequantize(torch.float16), torch.full((32, 32), 2048).half())
    with use_executor(executor):
        for rung in RUNGS:
            assert torch.equal(dequant_int4(pack(weight), rung=rung), torch.full((32, 32), 2050).half())


@pytest.mark.parametrize(("group", "form"), KINDS)
def test_ranges_put_together_are_the_whole(seed: int, group: int, form: Form) -> None:
    weight = random_weight(100, 2 * group, group, form)
    packed = pack(weight)
    with use_executor("sim"):
        whole = dequant_int4(packed)
        parts = [dequant_int4(packed, tiles=slice(*ends)) for ends in ((0, 1), (1, 3), (3, 4), (None, None))]
    assert torch.equal(bits(torch.cat(parts[:3])), bits(whole)) and torch.equal(bits(parts[3]), bits(whole))
    assert [len(part) for part in parts] == [32, 64, 4, 100]


def test_nothing_but_the_rows_is_written(seed: int) -> None:
    """The last tile holds one row: the 31 behind it belong to somebody else."""
    weight = random_weight(33, 64, 64, "scale_zero")
    for rung in RUNGS:
        room = torch.full((65, 64), float("nan")).half()
        with use_executor("sim"):
            assert dequant_int4(pack(weight), out=room[:33], rung=rung).data_ptr() == room.data_ptr()
        assert torch.equal(bits(room[:33]), bits(exact_halves(weight))) and bool(room[33:].isnan().all())


def test_the_last_rung_moves_whole_sectors(seed: int) -> None:
    packed = pack(random_weight(64, 512, 128, "scale_zero"))
    counters = count(dequant_int4, packed)
    assert counters.global_load.efficiency == counters.global_store.efficiency == 1
    assert counters.global_store.useful_bytes == 64 * 512 * 2
    assert counters.global_load.useful_bytes == packed.nbytes  # each byte asked for once in its warp
    assert counters.global_store.sectors_per_request == 16  # 16 bytes a lane
    assert count(dequant_int4, packed, rung="2_words").global_store.efficiency == 0.5


@pytest.mark.parametrize("executor", ["torch", "sim"])
@pytest.mark.parametrize(("group", "form"), KINDS)
def test_dequant_matmul(seed: int, executor: str, group: int, form: Form) -> None:
    """A workspace of one tile, of some, and of all: the same product, and never more memory than was granted."""
    weight = random_weight(100, 2 * group, group, form)
    x = (torch.randn(5, 2 * group) / 64).half()
    exact = x.double() @ exact_halves(weight).double().T
    for fitting in (1, 2, 7):
        workspace = HalfWorkspace(fitting * TILE * 2 * group * 2 + 30)
        with use_executor(executor):
            relative_error(dequant_matmul(x, pack(weight), workspace), exact, QUANTIZED)
        assert sum(buffer.nbytes for buffer in workspace._buffers.values()) <= workspace.nbytes


def test_sums_of_large_activations_do_not_overflow(seed: int) -> None:
    """Halves of x at 3e4 whose sums pass 65504 on the way and end below it."""
    weight = Int4Weight.from_nibbles(
        torch.full((40, 128), 9, dtype=torch.uint8),
        torch.tensor([1.0, 8.0]).half().expand(40, 1, 2).contiguous(),
        "scale_zero",
    )
    x = torch.full((2, 128), 3e4).half()
    x[:, 65:] = -3e4
    with use_executor("sim"):
        y = dequant_matmul(x, pack(weight), HalfWorkspace())
    assert torch.equal(y, torch.full((2, 40), 6e4).half())


def test_the_usual_workspace_is_85_mib() -> None:
    workspace = HalfWorkspace()
    assert workspace.nbytes == WORKSPACE_BYTES == 85 * 2**20
    assert workspace.rows(5120, TILE) == 8704 and workspace.rows(17408, TILE) == 2560
    assert not workspace._buffers  # nothing is held before it is asked for


def test_a_workspace_grows_to_what_is_asked_and_no_further() -> None:
    workspace, cpu = HalfWorkspace(4096), torch.device("cpu")
    small, large = workspace.take(2, 8, cpu), workspace.take(16, 128, cpu)
    assert small.shape == (2, 8) and large.shape == (16, 128) and large.dtype == torch.float16
    assert workspace.take(4, 8, cpu).data_ptr() == large.data_ptr()
    with pytest.raises(KernelArgumentError, match="17 rows of 128 halves do not fit"):
        workspace.take(17, 128, cpu)
    with pytest.raises(KernelArgumentError, match="does not hold 32 rows of 128 halves") as raised:
        workspace.rows(128, TILE)
    assert "8,192" in str(raised.value)


def misplaced(packed: PackedInt4) -> PackedInt4:
    return PackedInt4(shifted(packed.data, 1), packed.outputs, packed.group_size, packed.form)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda w: dequant_int4(w, tiles=slice(0, 3)), "tiles slice.0, 3, None. of 2"),
        (lambda w: dequant_int4(w, tiles=slice(1, 1)), "of 2"),
        (lambda w: dequant_int4(w, tiles=slice(0, 2, 2)), "of 2"),
        (lambda w: dequant_int4(w, tiles=slice(-1, None)), "of 2"),
        (lambda w: dequant_int4(w, out=torch.empty(40, 32).half()), r"out has shape \[40, 32\]"),
        (lambda w: dequant_int4(w, out=torch.empty(40, 64)), "out is float32"),
        (lambda w: dequant_int4(w, out=torch.empty(64, 40).half().T), "out is not dense"),
        (lambda w: dequant_int4(w, out=shifted(torch.empty(40, 64).half(), 1)), "out is not dense"),
        (lambda w: dequant_int4(misplaced(w)), "weight's data is not dense"),
        (lambda w: dequant_int4(w, rung="9_best"), "9_best"),
        (lambda w: dequant_matmul(torch.ones(2, 32).half(), w, HalfWorkspace()), r"x has shape \[2, 32\]"),
        (lambda w: dequant_matmul(torch.ones(2, 64), w, HalfWorkspace()), "x is float32"),
        (lambda w: dequant_matmul(torch.ones(2, 64).half(), w, HalfWorkspace(99)), "does not hold 32 rows"),
    ],
)
def test_what_is_not_taken(call: Callable[[PackedInt4], object], words: str) -> None:
    packed = pack(random_weight(40, 64, 64, "scale_zero"))
    with use_executor("sim"), pytest.raises((KernelArgumentError, KernelBuildError), match=words):
        call(packed)
