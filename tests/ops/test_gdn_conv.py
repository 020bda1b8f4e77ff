"""gdn_conv beyond its rungs' checks: cuts, neighbours and slots change no bit, odd heads, refusals."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.ops_gdn import Step, random_step
from helpers.ops_kv import assert_same
from torch import Tensor

from labkit.device import Kernel, use_executor
from labkit.device.nvrtc import find_nvrtc
from labkit.errors import KernelArgumentError, KernelBuildError
from labkit.ops import gdn
from labkit.ops.gdn_conv import RUNGS, WIDTHS, gdn_conv, macros
from labkit.ops.layout import GDN_DIMS
from labkit.ops.state_batch import StateBatch

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")


def run(step: Step, key_heads: int, key_dim: int, rung: str) -> Tensor:
    with use_executor("sim"):
        return gdn_conv(step.u, step.weight, step.history, step.batch, key_heads, key_dim, rung=rung)


def random_pieces(total: int) -> list[int]:
    """Lengths that add up to the total; short ones are frequent."""
    pieces: list[int] = []
    while sum(pieces) < total:
        pieces.append(min(total - sum(pieces), int(torch.randint(1, (3, 20, 40)[len(pieces) % 3], ()))))
    return pieces


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize(("dim", "width"), [(64, 4), (128, 3)])
def test_cut_anywhere_a_prompt_gives_the_same_bits(rung: str, dim: int, width: int, seed: int) -> None:
    whole = random_step((70,), (0,), 3 * dim, width, 5)
    expected, slot = run(whole, 1, dim, rung), int(whole.batch.slots[0])
    history, parts, seen = torch.full_like(whole.history, float("nan")), [], 0
    for length in random_pieces(70):
        batch = StateBatch.of([length], [seen], [slot])
        part = whole._replace(u=whole.u[seen : seen + length], history=history, batch=batch)
        parts.append(run(part, 1, dim, rung))
        seen += length
    assert_same(torch.cat(parts), expected)
    assert_same(history, whole.history)


@pytest.mark.parametrize("rung", RUNGS)
def test_other_sequences_of_a_step_change_no_bit(rung: str, seed: int) -> None:
    """40 decodes and prefills of any length, some fresh, some not, against each on its own."""
    rows = (*(1,) * 40, *torch.randint(1, 50, (4,)).tolist())
    starts = tuple(torch.randint(0, 4, (44,)).tolist())
    together = random_step(rows, starts, 192, 4, 0)
    before = together.history.clone()
    out = run(together, 1, 64, rung)
    for first, end, start, slot in together.batch.spans:
        history, batch = before.clone(), StateBatch.of([end - first], [start], [slot])
        alone = together._replace(u=together.u[first:end], history=history, batch=batch)
        assert_same(run(alone, 1, 64, rung), out[first:end])
        assert_same(history[slot], together.history[slot])


@pytest.mark.parametrize("executor", ["torch", "sim"])
@pytest.mark.parametrize("rung", RUNGS)
def test_heads_of_nothing_and_of_the_largest_halves(rung: str, executor: str) -> None:
    """A length of 0 divides nothing; exp(-c) overflows where c is -65504, and silu is 0; no square is a half."""
    u = torch.zeros(3, 64 * 3).half()
    u[1], u[2] = 65504.0, -65504.0
    weight, history = torch.tensor([0.0, 0.0, 0.0, 1.0]).expand(192, 4), torch.zeros(1, 3, 192).half()
    with use_executor(executor):
        out = gdn_conv(u, weight, history, StateBatch.of([3], [0], [0]), 1, 64, rung=rung).float()
    assert not out[0].any() and not out[2].any()
    each = torch.tensor([64**-0.5 * 64**-0.5, 64**-0.5, 65504.0]).repeat_interleave(64)
    torch.testing.assert_close(out[1], each, rtol=1e-3, atol=0)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dim", GDN_DIMS)
@pytest.mark.parametrize("vec", [1, 2, 4])
def test_no_spills(rung: str, width: int, dim: int, vec: int) -> None:
    resources = Kernel("gdn_conv", rung, "gdn_conv", macros(dim, width, vec)).image.resources["sm_70"]
    assert len(resources) == (3 if rung == "1_naive" else 1)
    for needs in resources.values():
        assert needs.spill_stores == needs.spill_loads == 0
        assert needs.registers <= 80


@pytest.mark.parametrize("rung", RUNGS)
def test_a_part_of_a_projection_is_read_where_it_lies(rung: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step, launched = random_step((3, 2), (0, 4), 192, 4, 64), list[tuple[str, list[int]]]()
    launch = Kernel.launch

    def noting(self: Kernel, grid: Any, block: Any, arguments: Any) -> None:
        launched.append((self.entry, [x.data_ptr() for x in arguments if isinstance(x, Tensor)]))
        launch(self, grid, block, arguments)

    monkeypatch.setattr(Kernel, "launch", noting)
    assert not step.u.is_contiguous()
    run(step, 1, 64, rung)
    entries = [entry for entry, _ in launched]
    assert entries == (["gdn_conv"] if rung == "2_fused" else ["gdn_conv", "normalise_heads", "keep_history"])
    assert step.u.data_ptr() in launched[0][1] and step.history.data_ptr() in launched[-1][1]


def test_channels_that_do_not_lie_dense_are_copied(seed: int) -> None:
    step = random_step((5,), (2,), 384, 4, 0)
    even = step._replace(u=step.u[:, ::2], weight=step.weight[::2], history=step.history[..., ::2].contiguous())
    history = even.history.clone()
    expected = gdn_conv(even.u, even.weight, history, even.batch, 1, 64)
    torch.testing.assert_close(run(even, 1, 64, "2_fused").float(), expected, rtol=1e-3, atol=1e-4)
    assert_same(even.history, history)


def test_decodes_go_together_in_torch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step for all that come first; and where nothing follows, no GPU would be asked for the rows of each."""
    calls: list[tuple[str, int]] = []
    for name in ("causal_conv", "causal_conv_step"):
        function = getattr(gdn, name)
        monkeypatch.setattr(
            gdn, name, lambda u, *rest, name=name, do=function: calls.append((name, len(u))) or do(u, *rest)
        )
    step = random_step((1, 1, 1, 5, 1), (0, 3, 7, 0, 2), 192, 4, 0)
    gdn_conv(step.u, step.weight, step.history, step.batch, 1, 64)
    assert calls == [("causal_conv_step", 3), ("causal_conv", 5), ("causal_conv", 1)]
    calls.clear()
    decodes = random_step((1,) * 6, (0, 1, 2, 3, 4, 5), 192, 4, 0)
    blind = replace(decodes.batch, row_starts=torch.empty(7, dtype=torch.int32, device="meta"))
    gdn_conv(decodes.u, decodes.weight, decodes.history, blind, 1, 64)
    assert calls == [("causal_conv_step", 6)] and "spans" not in vars(blind)


# --- refusals ---------------------------------------------------------------------------------------------------------

GIVEN: dict[str, Any] = {
    "u": torch.ones(3, 192).half(),
    "weight": torch.ones(192, 4),
    "history": torch.ones(2, 3, 192).half(),
    "batch": StateBatch.of([1, 2], [4, 0], [1, 0]),
    "key_heads": 1,
    "key_dim": 64,
}
EVERYWHERE: dict[str, tuple[dict[str, Any], str]] = {
    "no tensor": ({"u": 3}, "u is a int"),
    "no weight": ({"weight": None}, "weight is a NoneType"),
    "rows": ({"u": torch.ones(4, 192).half()}, r"u has shape \[4, 192\]; expected is \[3, channels\]"),
    "channels of the weight": ({"weight": torch.ones(191, 4)}, "channels = 192"),
    "channels of the history": ({"history": torch.ones(2, 3, 191).half()}, "channels = 192"),
    "inputs of the history": ({"history": torch.ones(2, 4, 192).half()}, r"expected is \[slots, 3, channels = 192\]"),
    "flat weight": ({"weight": torch.ones(192)}, r"weight has shape \[192\]"),
    "weight in half": ({"weight": torch.ones(192, 4).half()}, "weight is float16"),
    "history of another dtype": ({"history": torch.ones(2, 3, 192)}, "history is float32"),
    "one input": ({"weight": torch.ones(192, 1), "history": torch.ones(2, 0, 192).half()}, "over 1 inputs"),
    "slot": ({"history": torch.ones(1, 3, 192).half()}, "slot 1 of 1"),
    "no heads": ({"key_heads": 0}, "key_heads is 0"),
    "half a head": ({"key_heads": 0.5}, "key_heads is 0.5"),
    "head": ({"key_dim": -64}, "key_dim is -64"),
    "no v": ({"key_heads": 2}, "2 heads of 64 leave no v in 192 channels"),
    "gradient": ({"weight": torch.ones(192, 4, requires_grad=True)}, "requires a gradient"),
}


@pytest.mark.parametrize("executor", ["torch", "sim"])
@pytest.mark.parametrize(("changes", "told"), EVERYWHERE.values(), ids=EVERYWHERE.keys())
def test_refused_everywhere(changes: dict[str, Any], told: str, executor: str) -> None:
    given = {**GIVEN, **changes}
    with use_executor(executor), torch.enable_grad(), pytest.raises(KernelArgumentError, match=told) as caught:
        gdn_conv(**given)
    assert caught.value.cure and (given["history"] == 1).all()


BY_KERNELS: dict[str, tuple[dict[str, Any], str, str]] = {
    "dtype": ({"u": torch.ones(3, 192), "history": torch.ones(2, 3, 192)}, "u is float32", "executor torch"),
    "heads": ({"key_dim": 32}, "heads of q and k have 32 elements", "64, 128; others run on the executor torch"),
    "heads of v": (
        {"u": torch.ones(3, 160).half(), "weight": torch.ones(160, 4), "history": torch.ones(2, 3, 160).half()},
        "v has 32 channels",
        "64, 128; others run on the executor torch",
    ),
    "five inputs": (
        {"weight": torch.ones(192, 5), "history": torch.ones(2, 4, 192).half()},
        "over 5 inputs",
        "2, 3, 4; others run on the executor torch",
    ),
    "a history with gaps": ({"history": torch.ones(2, 3, 200).half()[..., :192]}, "not dense", "executor torch"),
}


@pytest.mark.parametrize(("changes", "told", "cure"), BY_KERNELS.values(), ids=BY_KERNELS.keys())
def test_refused_by_kernels(changes: dict[str, Any], told: str, cure: str) -> None:
    given = {**GIVEN, **changes}
    with use_executor("sim"), pytest.raises(KernelArgumentError, match=told) as caught:
        gdn_conv(**given)
    assert cure in caught.value.cure and (given["history"] == 1).all()
    assert gdn_conv(**copy.deepcopy(given)).isfinite().all()


@pytest.mark.parametrize("rung", ["", 3, "9_fast"])
def test_rungs_are_names(rung: Any) -> None:
    error = KernelBuildError if rung == "9_fast" else KernelArgumentError
    with use_executor("sim"), pytest.raises(error, match="rung") as caught:
        gdn_conv(**GIVEN, rung=rung)
    assert "1_naive" in caught.value.cure
