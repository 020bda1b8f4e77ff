"""The INT8 weight: what it holds, how it becomes dense again, what does not belong together."""

from __future__ import annotations

import pytest
import torch

from labkit.quant.int8 import Int8Weight


def random_int8(outputs: int, inputs: int, group: int) -> Int8Weight:
    q = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    return Int8Weight(q, torch.randn(outputs, inputs // group).half())


@pytest.mark.parametrize(("outputs", "inputs", "group"), [(1, 32, 32), (24, 576, 64), (7, 256, 128)])
def test_dequantize_is_exact(seed: int, outputs: int, inputs: int, group: int) -> None:
    weight = random_int8(outputs, inputs, group)
    exact = weight.q.double() * weight.scales.double().repeat_interleave(group, dim=1)
    assert weight.group_size == group and weight.shape == (outputs, inputs)
    assert torch.equal(weight.dequantize().double(), exact)
    assert torch.equal(weight.dequantize(torch.float16), exact.float().half())
    workspace = torch.full((outputs, inputs), float("nan"))
    assert weight.dequantize(out=workspace) is workspace and torch.equal(workspace.double(), exact)


def test_many_rows_are_widened_in_parts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random_int8(23, 64, 32)
    whole = weight.dequantize()
    monkeypatch.setattr("labkit.quant.int8.TILE", 5 * 64)
    assert torch.equal(weight.dequantize(), whole)


def test_cat_joins_outputs(seed: int) -> None:
    a, b = random_int8(5, 128, 64), random_int8(3, 128, 64)
    joined = Int8Weight.cat([a, b])
    assert joined.shape == (8, 128) and joined.nbytes == a.nbytes + b.nbytes
    assert torch.equal(joined.dequantize(), torch.cat((a.dequantize(), b.dequantize())))


def test_other_kinds_are_not_joined(seed: int) -> None:
    pair = [random_int8(5, 128, 64), random_int8(5, 128, 32)]
    assert not Int8Weight.can_cat(pair)
    with pytest.raises(ValueError, match="K=128 group=64, K=128 group=32"):
        Int8Weight.cat(pair)


@pytest.mark.parametrize(
    ("q", "scales", "words"),
    [
        (torch.zeros(2, 64), torch.zeros(2, 2).half(), "int8 and float16"),
        (torch.zeros(2, 64, dtype=torch.int8), torch.zeros(2, 2), "int8 and float16"),
        (torch.zeros(2, 64, dtype=torch.int8), torch.zeros(3, 2).half(), "do not match"),
        (torch.zeros(2, 64, dtype=torch.int8), torch.zeros(2, 4).half(), "groups of 32, 64 or 128"),
        (torch.zeros(2, 64, dtype=torch.int8), torch.zeros(2, 3).half(), "groups of 32, 64 or 128"),
        (torch.zeros(2, 64, dtype=torch.int8), torch.zeros(2, 0).half(), "groups of 32, 64 or 128"),
    ],
)
def test_what_does_not_belong_together(q: torch.Tensor, scales: torch.Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Int8Weight(q, scales)


def test_a_workspace_of_another_shape_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="workspace"):
        random_int8(4, 64, 32).dequantize(out=torch.empty(4, 32))
