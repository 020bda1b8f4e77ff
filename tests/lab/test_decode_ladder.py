"""What chapter 09 counts in the loops of decode attention, and the sources that it shows and changes."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from labkit.errors import KernelArgumentError
from labkit.lab.attention_run import random_operands, run_rung
from labkit.lab.decode_ladder import block_text, conflicts_by_line, loop_cost, run_changed
from labkit.quant.kv import KVFormat


def test_sharing_a_load_shows_in_the_loop() -> None:
    alone, packed = (loop_cost(rung, head_dim=64) for rung in ("1_warp_per_head", "2_packed_group"))
    assert alone.nbytes == packed.nbytes == 2 * 2 * 64
    assert 6 <= alone.times_asked < 8 and 1 <= packed.times_asked < 1.5  # besides, the page table
    assert alone.instructions > packed.instructions > 0 and alone.per_byte == alone.instructions / 256
    assert alone.conflicts == alone.mma == 0


def test_the_tensor_cores_do_the_same_for_any_group() -> None:
    """8 rows of a tile, whoever fills them: 2 products of 8 queries with 64 elements of a key, in tiles of 32 x 4."""
    costs = [loop_cost("5_tensor_cores", group=group, head_dim=64) for group in (1, 8)]
    assert [cost.mma for cost in costs] == [2 * 64 / (32 * 4)] * 2


def test_modelled_seconds() -> None:
    cost = dataclasses.replace(loop_cost("2_packed_group", head_dim=64), instructions=640.0, nbytes=900)
    on_bus, started = cost.seconds(1000)
    assert on_bus == pytest.approx(1e-6)
    assert started == pytest.approx(1000 * 640 / (80 * 4 * 32 * 1.53e9))


def test_smaller_pages() -> None:
    cost = loop_cost("2_packed_group", head_dim=64, kv="int4")
    assert cost.nbytes == KVFormat.named("int4", torch.float16).bytes_per_head(64)


def test_conflicts_have_their_line() -> None:
    run = run_rung("attention_decode", "2_packed_group", random_operands([40], heads=6))
    lost = conflicts_by_line(run)
    assert sum(lost.values()) == run.counters.bank_conflicts and all(lost.values())
    assert all(line and not line.startswith("//") for line in lost)


def test_blocks_of_the_source() -> None:
    loop = block_text("for (int t = 0; t < seen", "1_warp_per_head").splitlines()
    assert loop[0].startswith("for (int t") and loop[-1] == "}" and "#pragma unroll" in loop
    assert block_text("__device__ __forceinline__ bool idle()", "2_packed_group").count("\n") == 0
    with pytest.raises(KeyError, match="no line"):
        block_text("for (int nothing", "1_warp_per_head")


@pytest.mark.parametrize("rung", ["1_warp_per_head", "2_packed_group"])
def test_a_changed_rung(rung: str) -> None:
    torch.manual_seed(4)
    drawn = random_operands([70, 9], heads=12, kv_heads=2)
    same = run_changed(rung, "exponent - most)", "exponent - most )", drawn)
    assert same.matches and same.findings == []
    assert not run_changed(rung, "* before)", ")", drawn).matches


def test_what_cannot_be_changed() -> None:
    drawn = random_operands([9], heads=2)
    with pytest.raises(ValueError, match="stands neither"):
        run_changed("1_warp_per_head", "no such text", "", drawn)
    with pytest.raises(KernelArgumentError, match="another way"):
        run_changed("3_split_kv", "most", "", drawn)


def test_kinds_of_instructions() -> None:
    """Five shuffles add up a warp, for each of six queries; two exponentials each: before and p."""
    cost = loop_cost("2_packed_group", head_dim=64)
    assert (cost.kinds["shuffle"], cost.kinds["special"]) == (5 * 6, 2 * 6) and "move" not in cost.kinds
    assert list(cost.kinds.values()) == sorted(cost.kinds.values(), reverse=True)
    assert cost.instructions == 32 * sum(cost.kinds.values())
