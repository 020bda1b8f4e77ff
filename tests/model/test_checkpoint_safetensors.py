"""Safetensors directories: what is read, under which names, and how broken files are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from helpers.packers import write_safetensors
from safetensors.torch import save_file

from labkit.errors import CheckpointError, LabkitError, UnsupportedModelError
from labkit.model.checkpoint import open_checkpoint
from labkit.model.checkpoint.report import LoadReport
from labkit.model.checkpoint.shards import find_tensors

pytestmark = pytest.mark.usefixtures("seed")

CONFIG = {"model_type": "llama"}
INDEX = "model.safetensors.index.json"


def draw_state(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {
        "model.embed_tokens.weight": torch.randn(16, 8, dtype=dtype),
        "model.layers.0.mlp.up_proj.weight": torch.randn(12, 8, dtype=dtype),
        "model.layers.0.linear_attn.A_log": torch.randn(4, dtype=dtype),
        "model.norm.weight": torch.randn(8, dtype=dtype),
        "lm_head.weight": torch.randn(16, 8, dtype=dtype),
        "mtp.fc.weight": torch.randn(8, 16, dtype=dtype),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("prefix", ["model.", "model.language_model.", "language_model.model."])
def test_every_layout_reads_back(tmp_path: Path, dtype: torch.dtype, shards: int, prefix: str) -> None:
    state = draw_state(dtype)
    write_safetensors(tmp_path, state, CONFIG, shards, prefix)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.names() == set(state) and checkpoint.config == CONFIG
    assert checkpoint.bytes_read == 0 and checkpoint.total_bytes == sum(t.nbytes for t in state.values())
    for name, tensor in state.items():
        read = checkpoint.tensor(name)
        assert read.dtype == dtype and torch.equal(read, tensor)
    assert checkpoint.bytes_read == checkpoint.total_bytes and not checkpoint.unused()


def test_slices_read_only_what_they_need(tmp_path: Path) -> None:
    state = draw_state()
    write_safetensors(tmp_path, state, CONFIG)
    checkpoint = open_checkpoint(tmp_path)
    module = "model.layers.0.mlp.up_proj"
    part = checkpoint.linear(module, rows=slice(3, 7), cols=slice(2, 8))
    assert torch.equal(part, state[f"{module}.weight"][3:7, 2:8])
    assert checkpoint.bytes_read == 4 * 6 * 4
    assert torch.equal(checkpoint.tensor("model.norm.weight", rows=slice(2, None)), state["model.norm.weight"][2:])
    with pytest.raises(ValueError, match="within 12 entries"):
        checkpoint.linear(module, rows=slice(8, 13))


def test_head_in_a_wrapper_is_found(tmp_path: Path) -> None:
    write_safetensors(tmp_path, {"language_model.lm_head.weight": torch.ones(2, 2)}, CONFIG)
    assert open_checkpoint(tmp_path).names() == {"lm_head.weight"}


def test_vision_tensors_are_skipped_with_a_note(tmp_path: Path) -> None:
    vision = {"model.visual.blocks.0.norm1.weight": torch.ones(2), "visual.merger.weight": torch.ones(2)}
    write_safetensors(tmp_path, draw_state() | vision, CONFIG)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.names() == set(draw_state())
    assert "2 vision tensors skipped" in str(checkpoint.report)


def test_one_shard_of_any_name_and_optional_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    save_file({"model.norm.weight": torch.ones(3)}, tmp_path / "weights.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.has("model.norm.weight") and checkpoint.generation_config == {"eos_token_id": [7, 8]}
    assert checkpoint.tokenizer_files is None and checkpoint.gguf_metadata == {}
    (tmp_path / "tokenizer.json").write_text("{}")
    assert open_checkpoint(tmp_path).tokenizer_files == tmp_path


def test_labkit_tiny_opens() -> None:
    from labkit.model.resolve import TINY

    checkpoint = open_checkpoint(TINY)
    assert checkpoint.has("mtp.fc.weight") and checkpoint.tokenizer_files == TINY
    total = sum(checkpoint.tensor(name).nbytes for name in checkpoint.names())
    assert total == checkpoint.total_bytes == checkpoint.bytes_read


def test_a_tensor_in_two_shards_the_index_decides(tmp_path: Path) -> None:
    write_safetensors(tmp_path, draw_state(), CONFIG, shards=2)
    weight_map = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    right, wrong = torch.full((8,), 2.0), torch.full((8,), 3.0)
    first, second = sorted(set(weight_map.values()))
    for file, value in ((first, right), (second, wrong)):
        save_file({"model.norm.weight": value, f"only.{file}": torch.ones(1)}, tmp_path / file)
    for file, value in ((first, right), (second, wrong)):
        names = {"model.norm.weight": file, f"only.{first}": first, f"only.{second}": second}
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": names}))
        checkpoint = open_checkpoint(tmp_path)
        assert torch.equal(checkpoint.tensor("model.norm.weight"), value)
        assert f"the one in {file} is used" in str(checkpoint.report)


def test_a_tensor_that_the_index_leaves_out_is_noted(tmp_path: Path) -> None:
    write_safetensors(tmp_path, draw_state(), CONFIG, shards=2)
    index = json.loads((tmp_path / INDEX).read_text())
    file = index["weight_map"].pop("mtp.fc.weight")
    (tmp_path / INDEX).write_text(json.dumps(index))
    checkpoint = open_checkpoint(tmp_path)
    assert not checkpoint.has("mtp.fc.weight")
    assert f"mtp.fc.weight in {file} is not in the index" in str(checkpoint.report)


def refused(path: Path, *, saying: str, kind: type[LabkitError] = CheckpointError) -> None:
    with pytest.raises(kind, match=saying) as caught:
        open_checkpoint(path)
    assert caught.value.cure


def test_missing_things(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", saying="does not exist")
    (tmp_path / "model.bin").write_text("")
    refused(tmp_path / "model.bin", saying="neither a directory nor a .gguf")
    refused(tmp_path, saying=r"config\.json cannot be read")
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, saying=r"no \*\.safetensors")
    save_file({"a": torch.ones(1)}, tmp_path / "model-1.safetensors")
    save_file({"b": torch.ones(1)}, tmp_path / "model-2.safetensors")
    refused(tmp_path, saying="2 shards but no")


@pytest.mark.parametrize("text", ["{", "[1, 2]", "", "\xff", "[" * 100_000])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", INDEX])
def test_files_that_are_no_json_object(tmp_path: Path, file: str, text: str) -> None:
    write_safetensors(tmp_path, draw_state(), CONFIG)
    (tmp_path / file).write_text(text, encoding="latin-1")
    refused(tmp_path, saying=f"{file} (is not valid JSON|holds no JSON object)")


@pytest.mark.parametrize("weight_map", [None, [], {}, "x"])
def test_an_index_without_a_map(tmp_path: Path, weight_map: object) -> None:
    write_safetensors(tmp_path, draw_state(), CONFIG, shards=2)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    refused(tmp_path, saying="has no weight_map")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("shards", [1, 2])
def test_truncated_files(tmp_path: Path, share: float, shards: int) -> None:
    write_safetensors(tmp_path, draw_state() | {"big": torch.ones(1000)}, CONFIG, shards)
    file = sorted(tmp_path.glob("*.safetensors"))[-1]
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    refused(tmp_path, saying=f"{file.name} (is truncated|ends within)")


def header(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode() + bytes(64)


@pytest.mark.parametrize(
    "content",
    [
        header("not json"),
        header("[]"),
        header('{"a": 3}'),
        header('{"a": {"dtype": "F32", "shape": [1]}}'),
        header('{"a": {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}}'),
        header('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}'),
        header('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, "4"]}}'),
    ],
)
def test_unreadable_headers(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(content)
    refused(tmp_path, saying="no readable safetensors header")


def test_a_header_that_contradicts_itself_is_refused_when_read(tmp_path: Path) -> None:
    text = '{"a": {"dtype": "F32", "shape": [5], "data_offsets": [0, 64]}}'
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(header(text))
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_checkpoint(tmp_path).tensor("a")


@pytest.mark.parametrize("shard", ["model-00003-of-00002.safetensors", "../elsewhere.safetensors", "sub/x.safetensors"])
def test_an_index_that_names_an_absent_shard(tmp_path: Path, shard: str) -> None:
    here = tmp_path / "here"
    write_safetensors(here, draw_state(), CONFIG, shards=2)
    save_file({"model.norm.weight": torch.ones(8)}, tmp_path / "elsewhere.safetensors")
    index = json.loads((here / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = shard
    (here / INDEX).write_text(json.dumps(index))
    refused(here, saying=f"names the shard {shard}, which is absent")


def test_an_index_that_places_a_tensor_wrongly(tmp_path: Path) -> None:
    write_safetensors(tmp_path, draw_state(), CONFIG, shards=2)
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["model.layers.9.mlp.up_proj.weight"] = next(iter(index["weight_map"].values()))
    (tmp_path / INDEX).write_text(json.dumps(index))
    refused(tmp_path, saying=r"places model\.layers\.9\.mlp\.up_proj\.weight in .*, which does not hold it")


def test_two_spellings_of_one_tensor(tmp_path: Path) -> None:
    both = {"model.norm.weight": torch.ones(2), "model.language_model.norm.weight": torch.zeros(2)}
    write_safetensors(tmp_path, both, CONFIG)
    refused(tmp_path, saying="the same tensor under two names")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_not_finite_are_named(tmp_path: Path, bad: float, dtype: torch.dtype) -> None:
    state = draw_state(dtype)
    state["model.layers.0.mlp.up_proj.weight"][5, 3] = bad
    write_safetensors(tmp_path, state, CONFIG)
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"up_proj\.weight holds 1 values that are NaN or infinite"):
        checkpoint.linear("model.layers.0.mlp.up_proj")
    with pytest.raises(CheckpointError, match=r"up_proj\.weight holds 1"):
        checkpoint.tensor("model.layers.0.mlp.up_proj.weight")


def test_tensors_that_are_missing_or_misshapen(tmp_path: Path) -> None:
    write_safetensors(tmp_path, draw_state() | {"model.flat.weight": torch.ones(4)}, CONFIG)
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"no tensor model\.layers\.7\.A_log"):
        checkpoint.tensor("model.layers.7.A_log")
    with pytest.raises(CheckpointError, match=r"no tensor model\.layers\.7\.mlp\.up_proj\.weight"):
        checkpoint.linear("model.layers.7.mlp.up_proj")
    with pytest.raises(CheckpointError, match=r"model\.flat\.weight has the shape \[4\]"):
        checkpoint.linear("model.flat")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.float64])
def test_data_types_that_mean_another_format(tmp_path: Path, dtype: torch.dtype) -> None:
    """FP8 and INT8 weights come with a scale elsewhere: taking them as they are would be garbage."""
    write_safetensors(tmp_path, {"model.x.weight": torch.ones(4, 4).to(dtype)}, CONFIG)
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"model\.x\.weight has the data type"):
        checkpoint.linear("model.x")


def test_a_shard_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(self: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "model.safetensors").write_bytes(bytes(8))
    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read \(Permission denied\)"):
        find_tensors(tmp_path, LoadReport())
