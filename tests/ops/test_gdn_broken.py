"""Kernels of Gated DeltaNet's convolution and norm, broken by hand where no guard or barrier stands: it is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.broken_kernels import Workshop, noticed
from helpers.ops_gdn import CHECKS, SMALL

from labkit.device.nvrtc import find_nvrtc

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")]

BROKEN: dict[str, tuple[str, str, str, str]] = {
    "a fresh slot is read": ("gdn_conv", "2_fused", "run.first && starts[run.sequence] == 0", "false"),
    "every run begins with zeros": ("gdn_conv", "2_fused", "run.first && starts", "starts"),
    "another's history": ("gdn_conv", "2_fused", "slots[run.sequence]", "run.sequence"),
    "the last run writes, the first may still read": (
        "gdn_conv",
        "2_fused",
        "if (!run.first) return;",
        "if (run.row + RUN < row_starts[run.sequence + 1]) return;\n"
        "inputs = u + row_starts[run.sequence] * u_stride + channel;",
    ),
    "the first run keeps its own last inputs": ("gdn_conv", "2_fused", "if (run.rows < run.total)", "if (false)"),
    "the window is one row late": (
        "gdn_conv",
        "2_fused",
        "inputs + (p - PAST) * u_stride",
        "inputs + (p - PAST + 1) * u_stride",
    ),
    "the window does not move": ("gdn_conv", "2_fused", "inputs[ROWS + i / PER_LANE]", "inputs[i / PER_LANE]"),
    "taps in reverse": ("gdn_conv", "2_fused", "taps[c * WIDTH + j]", "taps[c * WIDTH + PAST - j]"),
    "two heads of 64 have one length": ("gdn_conv", "2_fused", "HEAD_LANES / 2", "WARP / 2"),
    "keys are scaled like queries": ("gdn_conv", "2_fused", "channel < key_width ?", "channel < 2 * key_width ?"),
    "v is normalised": ("gdn_conv", "2_fused", "channel < 2 * key_width;", "true;"),
    "no epsilon": ("gdn_conv", "2_fused", "+ 1e-6f", ""),
    "runs of neighbours overlap": ("gdn_conv", "2_fused", "begin / RUN + s", "begin / RUN"),
    "naive: a fresh slot is read": (
        "gdn_conv",
        "1_naive",
        "} else if (starts[sequence] > 0) {\n      input = __half",
        "} else {\n      input = __half",
    ),
    "naive: history shifted from the end": (
        "gdn_conv",
        "1_naive",
        "for (int j = 0; j < PAST; j++)",
        "for (int j = PAST - 1; j >= 0; j--)",
    ),
    "naive: old history is not shifted": ("gdn_conv", "1_naive", "kept[(j + rows) * channels]", "kept[j * channels]"),
    "naive: no epsilon": ("gdn_conv", "1_naive", "+ 1e-6f", ""),
    "naive: one head too many is scaled": ("gdn_conv", "1_naive", "blockIdx.y < key_heads", "blockIdx.y <= key_heads"),
    "no guard": ("gated_rmsnorm", "2_vector", "if (head >= heads) return;", ""),
    "a sum for a mean": ("gated_rmsnorm", "2_vector", "warp_sum(squares) / DIM", "warp_sum(squares)"),
    "mean without epsilon": ("gated_rmsnorm", "2_vector", "/ DIM + eps", "/ DIM"),
    "zero-centred weight": ("gated_rmsnorm", "2_vector", "gains[i] *", "(1.0f + gains[i]) *"),
    "sigmoid for silu": ("gated_rmsnorm", "2_vector", "__fdividef(gates[i],", "__fdividef(1.0f,"),
    "gates of the first row": ("gated_rmsnorm", "2_vector", "row * gate_stride", "0"),
    "dense gates": ("gated_rmsnorm", "2_vector", "row * gate_stride", "row * heads * DIM"),
    "naive: a sum for a mean": ("gated_rmsnorm", "1_naive", " / DIM + eps", " + eps"),
    "naive: mean without epsilon": ("gated_rmsnorm", "1_naive", "/ DIM + eps", "/ DIM"),
    "naive: dense gates": ("gated_rmsnorm", "1_naive", "row * gate_stride", "row * heads * DIM"),
    "naive: weights of all heads": ("gated_rmsnorm", "1_naive", "weight[threadIdx.x]", "weight[column]"),
}
"""What is wrong -> folder, rung, the source as it was, and as it is."""


@pytest.mark.parametrize(("op", "rung", "before", "after"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_kernels_are_noticed(
    op: str, rung: str, before: str, after: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a finding of the simulator or a wrong result, of one of the shapes that every rung is checked with."""
    Workshop(tmp_path, monkeypatch).change(op, rung, before, after)
    assert noticed(CHECKS[op][1], rung, SMALL[op])
