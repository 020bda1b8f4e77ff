"""Values that float16 cannot hold are reported by name and kept wider (the kind of case num-02)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.models import llama, random_ids, saved
from helpers.packers import awq_config, awq_triplet, dequantize_rows, write_safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import LLM
from labkit.errors import CheckpointError
from labkit.model.checkpoint import LoadReport, check_finite, open_checkpoint, ranges, to_half_checked
from labkit.quant.int4 import Int4Weight

MODULE = "model.layers.3.mlp.up_proj"


def open_with_scales(directory: Path, scales: torch.Tensor, seed: int) -> tuple[Int4Weight, torch.Tensor, LoadReport]:
    """A module with these scales [K/g, N], its exact weight, and the report."""
    rng = np.random.default_rng(seed)
    groups, rows = scales.shape
    q, zero = rng.integers(0, 16, (rows, groups * 32)), rng.integers(0, 16, (rows, groups))
    fields = awq_triplet(q, zero, np.ones((rows, groups), np.float16)) | {"scales": scales}
    state = {f"{MODULE}.{field}": tensor for field, tensor in fields.items()}
    write_safetensors(directory, state, {"quantization_config": awq_config(32)})
    checkpoint = open_checkpoint(directory)
    weight = checkpoint.linear(MODULE)
    assert isinstance(weight, Int4Weight)
    exact = dequantize_rows(q, zero, np.ascontiguousarray(scales.float().numpy().T))
    return weight, exact, checkpoint.report


def test_a_scale_that_would_vanish(tmp_path: Path, seed: int) -> None:
    scales = torch.full((2, 16), 0.01, dtype=torch.bfloat16)
    scales[1, 3] = 1e-8
    weight, exact, report = open_with_scales(tmp_path, scales, seed)
    assert weight.groups.dtype == torch.float32
    torch.testing.assert_close(weight.dequantize(), exact, rtol=1e-6, atol=0)
    (finding,) = report.ranges
    assert (finding.name, finding.overflowing, finding.flushing) == (f"{MODULE}.scales", 0, 1)
    assert f"{MODULE}.scales" in str(report) and "1 would become 0" in str(report)


def test_a_scale_that_would_overflow(tmp_path: Path, seed: int) -> None:
    scales = torch.full((1, 8), 0.5, dtype=torch.bfloat16)
    scales[0, :2] = 70144
    weight, exact, report = open_with_scales(tmp_path, scales, seed)
    torch.testing.assert_close(weight.dequantize(), exact, rtol=1e-6, atol=0)
    assert report.ranges[0].overflowing == 2


def test_scales_in_range_become_half_only_where_exact(tmp_path: Path, seed: int) -> None:
    """bfloat16 has fewer digits than float16, so normal numbers lose nothing; subnormal ones would."""
    normal = (torch.rand(2, 16) + 0.01).bfloat16()
    weight, exact, report = open_with_scales(tmp_path / "normal", normal, seed)
    assert weight.groups.dtype == torch.float16 and torch.equal(weight.dequantize(), exact)
    subnormal = normal.clone()
    subnormal[0, 0] = 1.3e-6
    weight, exact, report = open_with_scales(tmp_path / "subnormal", subnormal, seed)
    assert weight.groups.dtype == torch.float32 and torch.equal(weight.dequantize(), exact)
    assert not report.ranges


def test_a_norm_weight_that_overflows() -> None:
    weight, report = torch.ones(256, dtype=torch.bfloat16), LoadReport()
    weight[17] = 70144
    name = "model.layers.3.self_attn.q_norm.weight"
    kept = to_half_checked(name, weight, report)
    assert kept.dtype == torch.float32 and torch.equal(kept, weight.float())
    assert str(report) == (f"{name}: in float16 1 entries would overflow and 0 would become 0; kept in float32.")


def test_a_log_of_12_fits_but_its_decay_is_for_fp32() -> None:
    """The tensor itself fits in half; exp(12) does not, which is why the decay is computed in fp32."""
    a_log, report = torch.tensor([12.0]), LoadReport()
    assert to_half_checked("A_log", a_log, report).item() == 12.0 and not report.notes
    decay = torch.exp(-torch.exp(a_log) * torch.nn.functional.softplus(torch.tensor(1.0)))
    assert decay.item() == 0.0


LIMITS = [0.0, -0.0, 65504.0, -65504.0, 2.0**-24, -(2.0**-24), 1.0]


def test_the_edges_of_the_range() -> None:
    report = LoadReport()
    kept = to_half_checked("edges", torch.tensor(LIMITS), report)
    assert kept.dtype == torch.float16 and kept.tolist() == LIMITS and not report.notes
    for bad, counts in ((65505.0, (1, 0)), (-1e30, (1, 0)), (2.0**-25, (0, 1)), (-1e-38, (0, 1))):
        report = LoadReport()
        assert to_half_checked("x", torch.tensor([*LIMITS, bad]), report).dtype == torch.float32
        assert (report.ranges[0].overflowing, report.ranges[0].flushing) == counts


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40), st.booleans())
def test_counts_are_those_of_the_definition(values: list[float], narrow: bool) -> None:
    tensor = torch.tensor(values, dtype=torch.bfloat16 if narrow else torch.float32)
    tensor = tensor[tensor.isfinite()]
    report = LoadReport()
    kept = to_half_checked("t", tensor, report)
    half = [float(np.float16(value)) if abs(value) <= 65504 else None for value in tensor.tolist()]
    lost = (
        sum(value is None for value in half),
        sum(h == 0 and v != 0 for h, v in zip(half, tensor.tolist(), strict=True)),
    )
    assert [(f.overflowing, f.flushing) for f in report.ranges] == ([lost] if any(lost) else [])
    assert torch.equal(kept, tensor.float() if any(lost) else tensor.half())


def test_large_tensors_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "STEP", 7)
    tensor, report = torch.ones(9, 11), LoadReport()
    tensor[0, 0], tensor[8, 10], tensor[4, 4] = 1e9, 1e-20, -1e9
    to_half_checked("big", tensor, report)
    assert (report.ranges[0].overflowing, report.ranges[0].flushing) == (2, 1)
    tensor[3, 3] = torch.nan
    tensor[7, 7] = torch.inf
    with pytest.raises(CheckpointError, match="big holds 2 values"):
        check_finite("big", tensor)


def test_a_finding_is_reported_once() -> None:
    report = LoadReport()
    for _ in range(2):
        to_half_checked("twice", torch.tensor([1e9]), report)
    assert len(report.ranges) == len(report.notes) == 1
    for text in ("a note", "a note", "another"):
        report.note(text)
    assert str(report).splitlines()[1:] == ["a note", "another"]


def test_a_large_matrix_may_lose_what_chance_puts_next_to_zero(seed: int) -> None:
    """A bell curve of width 0.02 puts 0.3 of its 250,000 entries within 2^-25 of 0: a few of them are no finding."""
    matrix, report = torch.randn(500, 500) * 0.02, LoadReport()
    matrix[matrix.abs() < 1e-6] = 1e-3
    matrix[3, 4] = matrix[5, 6] = 1e-9
    assert to_half_checked("m", matrix, report).dtype == torch.float16
    assert report.ranges[0].kept_half and "2 entries next to 0" in str(report)


@pytest.mark.parametrize("shape", [(40,), (8, 5), (500, 500)])
def test_more_than_chance_is_kept_wide(shape: tuple[int, ...], seed: int) -> None:
    tensor, report = torch.rand(shape) + 0.5, LoadReport()
    tensor.view(-1)[:40:4] = 1e-9
    assert to_half_checked("t", tensor, report).dtype == torch.float32
    assert not report.ranges[0].kept_half and report.ranges[0].flushing == 10


def test_a_model_with_such_tensors_answers_in_fp32_where_needed(seed: int, tmp_path: Path, caplog: Any) -> None:
    """Norm weight and matrix beyond float16: named in the log, kept wide, and the logits stay finite."""
    model = llama()
    model.model.layers[1].input_layernorm.weight[3] = 70144
    model.model.layers[0].mlp.down_proj.weight[2, 5] = 1e6
    ids = random_ids(160, 40)
    with LLM(saved(model.bfloat16(), tmp_path)) as llm:
        logits = llm.logits(ids)
    assert logits.isfinite().all()
    named = " ".join(record.getMessage() for record in caplog.records)
    assert "layers.1.input_layernorm.weight" in named and "layers.0.mlp.down_proj.weight" in named


@pytest.mark.parametrize("deviation", [1e-9, 1e-7, 1e-6, 1e-4])
def test_a_narrow_matrix_is_kept_wide(deviation: float, seed: int) -> None:
    """Where the whole matrix lies near 0, what float16 loses is not chance."""
    matrix, report = (torch.randn(256, 256) * deviation).bfloat16(), LoadReport()
    assert to_half_checked("m", matrix, report).dtype == torch.float32
    assert not report.ranges[0].kept_half
