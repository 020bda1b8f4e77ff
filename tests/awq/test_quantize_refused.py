"""What cannot be quantized is refused before anything is written, with a cure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import llama, qwen35, saved
from helpers.packers import write_awq_checkpoint
from helpers.quantizing import SMALL, model_on_disk
from safetensors.torch import load_file, save_file
from torch import Tensor

from labkit.awq.quantize import quantize
from labkit.awq.settings import QuantizeSettings
from labkit.errors import CheckpointError, ConfigError, LabkitError, TokenizerError, UnsupportedModelError


def _changed(**changes: Any) -> QuantizeSettings:
    return QuantizeSettings(**{**SMALL.to_dict(), **changes})


def _refused(error: type[LabkitError], words: str, source: Path, out: Path, *args: Any, **keys: Any) -> None:
    with pytest.raises(error, match=words) as caught:
        quantize(source, out, *args, **keys)
    assert caught.value.cure and not out.exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"group_size": 48}, "group_size is 48.*32, 64, 128"),
        ({"format": "gguf"}, "format is 'gguf'.*compressed-tensors"),
        ({"method": "gptq"}, "method is 'gptq'.*awq, rtn"),
        ({"windows": 0}, "windows is 0.*from 1"),
        ({"window": 1}, "window is 1.*from 2"),
        ({"windows": True}, "windows is True"),
        ({"skip": ("(",)}, "no regular expression"),
        ({"skip": ("",)}, "skip every module"),
    ],
)
def test_settings(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _changed(**changes)


@pytest.fixture
def source(seed: int, tmp_path: Path) -> Path:
    return model_on_disk(llama, tmp_path / "source")


def test_no_module_divides_into_the_groups(source: Path, tmp_path: Path) -> None:
    _refused(ConfigError, "groups of 128.*smaller --group-size", source, tmp_path / "out", _changed(group_size=128))
    _refused(ConfigError, "No linear module", source, tmp_path / "out", _changed(skip=("_proj",)))


def test_calibration_text(source: Path, tmp_path: Path) -> None:
    short, binary, out = tmp_path / "short.txt", tmp_path / "binary", tmp_path / "out"
    short.write_text("too short")
    binary.write_bytes(b"\xff\xfe\x00")
    _refused(ConfigError, "has [1-9] tokens; 4 windows of 48 need 192", source, out, SMALL, calibration=short)
    _refused(ConfigError, "cannot be read", source, out, SMALL, calibration=binary)
    _refused(ConfigError, "cannot be read", source, out, SMALL, calibration=tmp_path / "missing.txt")
    _refused(ConfigError, "need 100000000", source, out, _changed(windows=10**6, window=100))


def test_no_tokenizer(source: Path, tmp_path: Path) -> None:
    (source / "tokenizer.json").unlink()
    _refused(TokenizerError, "no tokenizer to read", source, tmp_path / "out", SMALL)
    assert quantize(source, tmp_path / "out", _changed(method="rtn")).quantized  # which reads no text


@pytest.mark.parametrize("file_format", ["awq", "compressed-tensors"])
def test_a_model_that_is_quantized_already(source: Path, tmp_path: Path, file_format: str) -> None:
    first = quantize(source, tmp_path / "first", _changed(format=file_format)).out
    _refused(UnsupportedModelError, "quantized already.*16-bit model", first, tmp_path / "out", SMALL)


def test_a_foreign_awq_model(seed: int, tmp_path: Path) -> None:
    write_awq_checkpoint(tmp_path / "awq", llama(hidden_size=128, intermediate_size=128), group_size=128)
    _refused(UnsupportedModelError, "quantized already", tmp_path / "awq", tmp_path / "out", SMALL)


@pytest.mark.parametrize("method", ["awq", "rtn"])
def test_a_bias_that_the_architecture_does_not_have(source: Path, tmp_path: Path, method: str) -> None:
    file = source / "model.safetensors"
    bias = {"model.layers.1.mlp.up_proj.bias": torch.ones(96)}
    save_file(load_file(file) | bias, file, metadata={"format": "pt"})
    with pytest.raises(UnsupportedModelError, match=r"does not use, such as model\.layers\.1\.mlp\.up_proj\.bias"):
        quantize(source, tmp_path / "out", _changed(method=method))


@pytest.mark.parametrize("method", ["awq", "rtn"])
def test_a_broken_weight(source: Path, tmp_path: Path, method: str) -> None:
    file = source / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"up_proj\.weight holds 1 values that are NaN"):
        quantize(source, tmp_path / "out", _changed(method=method))


def _rewritten(source: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    file = source / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return source


@pytest.mark.parametrize("method", ["awq", "rtn"])
@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model.embed_tokens.weight": torch.ones(302, 32)}, CheckpointError, r"shape \[302, 32\].*asks for \[302, 64"),
        ({"lm_head.weight": torch.ones(8, 64)}, CheckpointError, r"lm_head\.weight has shape \[8, 64\]"),
        ({"lm_head.weight": None}, CheckpointError, r"has no lm_head\.weight"),
        ({"model.norm.weight": torch.ones(32)}, CheckpointError, r"norm\.weight has shape \[32\]"),
        ({"model.norm.weight": None}, CheckpointError, r"has no tensor model\.norm\.weight"),
        ({"lm_head.bias": torch.ones(302)}, UnsupportedModelError, r"does not use, such as lm_head\.bias"),
        ({"model.layers.2.x": torch.ones(2)}, UnsupportedModelError, r"does not use, such as model\.layers\.2\.x"),
    ],
)
def test_tensors_around_the_layers(
    source: Path, tmp_path: Path, method: str, changes: dict[str, Tensor | None], error: type[LabkitError], words: str
) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        for name, value in changes.items():
            tensors.pop(name, None)
            if value is not None:
                tensors[name] = value

    _refused(error, words, _rewritten(source, change), tmp_path / "out", _changed(method=method))


def test_a_tokenizer_of_another_model(source: Path, tmp_path: Path) -> None:
    def cut(tensors: dict[str, Tensor]) -> None:
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors[name] = tensors[name][:100].clone()

    config = json.loads((source / "config.json").read_text()) | {"vocab_size": 100}
    (source / "config.json").write_text(json.dumps(config))
    _refused(CheckpointError, "makes the token 2.*ends at 100", _rewritten(source, cut), tmp_path / "out", SMALL)


def test_a_text_that_nobody_would_read(source: Path, tmp_path: Path) -> None:
    words = "rtn reads no calibration text"
    _refused(ConfigError, words, source, tmp_path / "out", _changed(method="rtn"), calibration=tmp_path / "missing.txt")


@pytest.mark.parametrize("method", ["awq", "rtn"])
@pytest.mark.parametrize(("factor", "words"), [(1e-8, "too small"), (1e12, "too large")])
def test_weights_whose_scales_no_half_holds(
    source: Path, tmp_path: Path, method: str, factor: float, words: str
) -> None:
    """Told by the module's full name, which --skip takes."""
    name = "model.layers.1.self_attn.k_proj"
    changed = _rewritten(source, lambda tensors: tensors[f"{name}.weight"].mul_(factor))
    with pytest.raises(UnsupportedModelError, match=rf"{name} has weights {words}.*--skip"):
        quantize(changed, tmp_path / "out", _changed(method=method))


def test_another_architecture(seed: int, tmp_path: Path) -> None:
    folder = saved(qwen35(), tmp_path / "source")
    config = (folder / "config.json").read_text().replace('"qwen3_5_text"', '"mamba"')
    (folder / "config.json").write_text(config)
    _refused(UnsupportedModelError, "mamba", folder, tmp_path / "out", SMALL)
    _refused(CheckpointError, "does not exist", tmp_path / "nothing", tmp_path / "out", SMALL)
