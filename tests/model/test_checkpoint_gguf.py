"""GGUF files: values against the gguf package, row order against transformers."""

from __future__ import annotations

import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from helpers.gguf_bytes import write_raw_gguf
from helpers.gguf_models import draw_model
from helpers.packers import split_heads, write_gguf_llama

from labkit.errors import CheckpointError
from labkit.model.checkpoint import head_is_tied, open_checkpoint
from labkit.quant.int4 import Int4Weight

pytestmark = pytest.mark.usefixtures("seed")

Q = gguf.GGMLQuantizationType
TYPES = [Q.F32, Q.F16, Q.Q8_0, Q.Q4_0, Q.Q4_1]
Q_PROJ = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("qtype", TYPES)
def test_every_type_in_transformers_order(tmp_path: Path, qtype: gguf.GGMLQuantizationType, tied: bool) -> None:
    expected = write_gguf_llama(tmp_path / "m.gguf", draw_model(tied=tied), qtype, embedding_type=qtype)
    if tied:
        del expected["lm_head.weight"]
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.names() == set(expected) and head_is_tied(checkpoint) == tied
    for name, dense in expected.items():
        read = checkpoint.tensor(name)
        assert read.dtype == (torch.float16 if qtype == Q.F16 and dense.ndim == 2 else torch.float32)
        assert torch.equal(read.float(), dense)
    assert checkpoint.bytes_read == checkpoint.total_bytes and not checkpoint.unused()


@pytest.mark.parametrize(("qtype", "form"), [(Q.Q4_0, "scale_zero"), (Q.Q4_1, "scale_bias")])
@pytest.mark.parametrize("rows", [None, slice(5, 40)])
@pytest.mark.parametrize("cols", [None, slice(32, 64)])
def test_int4_stays_int4(
    tmp_path: Path, qtype: gguf.GGMLQuantizationType, form: str, rows: slice | None, cols: slice | None
) -> None:
    expected = write_gguf_llama(tmp_path / "m.gguf", draw_model(), qtype)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    for module in (Q_PROJ, "model.layers.1.mlp.gate_proj", "lm_head"):
        weight = checkpoint.linear(module, rows=rows, cols=cols)
        assert isinstance(weight, Int4Weight) and weight.form == form and weight.group_size == 32
        assert torch.equal(weight.dequantize(), expected[f"{module}.weight"][rows or slice(None), cols or slice(None)])


def test_slices_that_cut_a_group(tmp_path: Path) -> None:
    write_gguf_llama(tmp_path / "m.gguf", draw_model(), Q.Q4_1)
    with pytest.raises(CheckpointError, match="cut a quantization group of 32"):
        open_checkpoint(tmp_path / "m.gguf").linear(Q_PROJ, cols=slice(0, 40))


@pytest.mark.parametrize("qtype", [Q.F16, Q.Q8_0])
def test_slices_of_dense_weights(tmp_path: Path, qtype: gguf.GGMLQuantizationType) -> None:
    expected = write_gguf_llama(tmp_path / "m.gguf", draw_model(), qtype)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    part = checkpoint.linear(Q_PROJ, rows=slice(7, 50), cols=slice(3, 61))
    assert isinstance(part, torch.Tensor) and torch.equal(part.float(), expected[f"{Q_PROJ}.weight"][7:50, 3:61])
    assert checkpoint.bytes_read == 43 * {Q.F16: 128, Q.Q8_0: 68}[qtype]
    assert torch.equal(checkpoint.tensor("model.norm.weight", rows=slice(4, 9)), expected["model.norm.weight"][4:9])


def test_biases_of_q_and_k_are_reordered_too(tmp_path: Path) -> None:
    expected = write_gguf_llama(tmp_path / "m.gguf", draw_model(bias=True), Q.F32)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.config["attention_bias"] is True
    for part in "qkvo":
        name = f"model.layers.1.self_attn.{part}_proj.bias"
        assert torch.equal(checkpoint.tensor(name), expected[name])


def test_the_reordering_by_hand() -> None:
    """One head of width 4: llama.cpp keeps the rotated pairs (0, 2) and (1, 3) of the original side by side."""
    assert split_heads(np.array([[0], [2], [1], [3]]), 1).ravel().tolist() == [0, 1, 2, 3]


def test_reading_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf_llama(path, draw_model(), Q.F32)
    before = path.read_bytes()
    open_checkpoint(path).tensor("model.norm.weight").zero_()
    assert path.read_bytes() == before


def test_config_has_the_keys_of_transformers(tmp_path: Path) -> None:
    model = draw_model(tied=True)
    write_gguf_llama(tmp_path / "m.gguf", model, Q.F32)
    config = open_checkpoint(tmp_path / "m.gguf").config
    theirs = model.config.to_dict()
    for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
        assert config[key] == theirs[key]
    for key in ("num_key_value_heads", "head_dim", "max_position_embeddings", "bos_token_id", "eos_token_id"):
        assert config[key] == theirs[key]
    assert config["rms_norm_eps"] == pytest.approx(1e-5) and config["rope_theta"] == 5e4
    assert config["tie_word_embeddings"] is True and config["model_type"] == "llama"


def test_keys_that_may_be_absent(tmp_path: Path) -> None:
    write_raw_gguf(tmp_path / "m.gguf", drop={"llama.attention.key_length", "llama.attention.value_length",
                                       "llama.attention.head_count_kv", "llama.rope.freq_base"})  # fmt: skip
    config = open_checkpoint(tmp_path / "m.gguf").config
    assert (config["head_dim"], config["num_key_value_heads"], config["rope_theta"]) == (16, 4, 10000.0)


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}é" for i in range(49_152)])
    writer.add_token_types([1] * 49_152)
    writer.add_token_merges([f"a{i} b" for i in range(48_900)])
    writer.add_token_scores([0.5, -1.5])
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ messages }}")
    writer.add_name("a model")


def test_metadata_for_the_tokenizer_is_fast(tmp_path: Path) -> None:
    write_gguf_llama(tmp_path / "m.gguf", draw_model(), Q.F32, extra=add_tokenizer)
    started = time.perf_counter()
    metadata = open_checkpoint(tmp_path / "m.gguf").gguf_metadata
    assert time.perf_counter() - started < 2
    assert metadata["tokenizer.ggml.tokens"][::49_151] == ["t0é", "t49151é"]
    assert len(metadata["tokenizer.ggml.merges"]) == 48_900 and metadata["tokenizer.ggml.scores"] == [0.5, -1.5]
    assert metadata["tokenizer.ggml.token_type"] == [1] * 49_152
    assert metadata["tokenizer.ggml.add_bos_token"] is False and metadata["tokenizer.chat_template"] == "{{ messages }}"
    assert metadata["general.name"] == "a model" and metadata["general.architecture"] == "llama"
    assert not any(key.startswith("llama.") for key in metadata)


@pytest.mark.slow
def test_smollm2_against_the_gguf_package(smollm2_path: Path) -> None:
    checkpoint = open_checkpoint(smollm2_path)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2_path).tensors}
    for ours, name, heads in (
        ("model.embed_tokens", "token_embd", 0),
        ("model.layers.29.mlp.down_proj", "blk.29.ffn_down", 0),
        ("model.layers.7.self_attn.q_proj", "blk.7.attn_q", 9),
        ("model.layers.7.self_attn.k_proj", "blk.7.attn_k", 3),
        ("model.layers.7.self_attn.v_proj", "blk.7.attn_v", 0),
    ):
        tensor = theirs[f"{name}.weight"]
        dense = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        dense = split_heads(dense, heads) if heads else dense
        assert np.array_equal(checkpoint.tensor(f"{ours}.weight").numpy(), dense)
