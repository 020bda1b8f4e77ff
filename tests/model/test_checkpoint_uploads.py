"""Checkpoints as real publishers make them: what is read as what, what is left alone, and how many bytes that is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from helpers.packers import write_safetensors
from helpers.uploads import UPLOADS, small_qwen, write_upload

from labkit.bench.fit import fit
from labkit.errors import UnsupportedModelError
from labkit.model.checkpoint import open_checkpoint
from labkit.quant.int4 import Int4Weight

pytestmark = pytest.mark.usefixtures("seed")
uploads = pytest.mark.parametrize("name", UPLOADS)


@uploads
def test_every_module_is_what_the_file_says(tmp_path: Path, name: str) -> None:
    upload = UPLOADS[name]
    exact = write_upload(tmp_path, small_qwen(), upload)
    checkpoint = open_checkpoint(tmp_path)
    for tensor, expected in exact.items():
        module = tensor.removesuffix(".weight")
        if not tensor.endswith("_proj.weight") and "in_proj_" not in tensor:
            assert torch.equal(checkpoint.tensor(tensor).float(), expected.float())
            continue
        weight = checkpoint.linear(module)
        assert isinstance(weight, Int4Weight) == bool(re.fullmatch(upload.quantizes, module))
        found = weight.dequantize() if isinstance(weight, Int4Weight) else weight
        assert torch.equal(found, expected)
    assert all(name.startswith("mtp.") for name in checkpoint.unused()) and checkpoint.unused()
    assert ("kv_cache_scheme" in str(checkpoint.report)) == bool(upload.config.get("kv_cache_scheme"))
    assert not checkpoint.report.ranges


@uploads
def test_fit_counts_what_is_loaded(tmp_path: Path, name: str) -> None:
    """Bytes from the headers alone, as stored and in labkit's INT4 format, against the tensors themselves."""
    upload = UPLOADS[name]
    exact = write_upload(tmp_path, small_qwen(), upload)
    checkpoint = open_checkpoint(tmp_path)
    stored = labkit = 0
    for tensor in checkpoint.names():
        module, _, field = tensor.rpartition(".")
        if tensor.startswith("mtp."):
            continue
        if re.fullmatch(upload.quantizes, module):
            read = checkpoint.linear(module)
            assert isinstance(read, Int4Weight)
            labkit += read.nbytes if field in ("qweight", "weight_packed") else 0
        else:
            size = 4 if tensor.endswith(("A_log", "linear_attn.norm.weight")) else 2
            labkit += size * exact[tensor].numel()
            stored += size * exact[tensor].numel()
    packed = [e for n, e in checkpoint._stored.entries.items() if re.fullmatch(upload.quantizes, n.rpartition(".")[0])]
    stored += sum(entry.nbytes for entry in packed)
    report = fit(tmp_path)
    assert report.weight_bytes == stored
    assert report.weight_bytes + report.labkit_packing_bytes == labkit


def test_fit_names_a_format_of_other_bits(tmp_path: Path) -> None:
    """Four weights to a word instead of eight: not a broken checkpoint but an 8-bit one."""
    upload = UPLOADS["Qwen 3.5 GPTQ-Int4"]
    model = small_qwen()
    write_upload(tmp_path, model, upload)
    checkpoint = open_checkpoint(tmp_path)
    state = {name: checkpoint._stored.read(name) for name in checkpoint.names()}
    for name in [name for name in state if name.endswith("qweight")]:
        state[name] = torch.zeros(2 * state[name].shape[0], state[name].shape[1], dtype=torch.int32)
    quantization = dict(upload.config) | {"bits": 8}
    write_safetensors(tmp_path / "eight", state, {**model.config.to_dict(), "quantization_config": quantization})
    with pytest.raises(UnsupportedModelError, match="8 bits") as caught:
        fit(tmp_path / "eight")
    assert caught.value.cure
