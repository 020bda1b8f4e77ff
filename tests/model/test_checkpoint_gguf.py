"""GGUF files: values against the gguf package, row order against transformers, broken and foreign files."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from helpers.packers import split_heads, write_gguf_llama
from transformers import LlamaConfig, LlamaForCausalLM

from labkit.errors import CheckpointError, LabkitError, UnsupportedModelError
from labkit.model.checkpoint import head_is_tied, open_checkpoint
from labkit.quant.int4 import Int4Weight

pytestmark = pytest.mark.usefixtures("seed")

Q = gguf.GGMLQuantizationType
TYPES = [Q.F32, Q.F16, Q.Q8_0, Q.Q4_0, Q.Q4_1]
Q_PROJ = "model.layers.0.self_attn.q_proj"


def draw_model(*, tied: bool = False, bias: bool = False) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=777, rms_norm_eps=1e-5, bos_token_id=1,
        eos_token_id=2, tie_word_embeddings=tied, attention_bias=bias,
        rope_parameters={"rope_theta": 5e4, "rope_type": "default"},
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


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
    rewrite(tmp_path / "m.gguf", drop={"llama.attention.key_length", "llama.attention.value_length",
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


# --- files that are refused ------------------------------------------------------------------------------


def refused(path: Path, *, saying: str, kind: type[LabkitError] = CheckpointError) -> None:
    with pytest.raises(kind, match=saying) as caught:
        open_checkpoint(path)
    assert caught.value.cure


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, value: str | int | float) -> bytes:
    """A key of type string, u32 or f32."""
    if isinstance(value, str):
        return string(name) + struct.pack("<I", 8) + string(value)
    code, number = ("f", 6) if isinstance(value, float) else ("I", 4)
    return string(name) + struct.pack(f"<I{code}", number, value)


def row(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    """A line of the tensor table; shape as GGUF has it, innermost first."""
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


KEYS: dict[str, str | int | float] = {
    "general.architecture": "llama",
    "llama.context_length": 128,
    "llama.embedding_length": 64,
    "llama.block_count": 1,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.key_length": 16,
    "llama.attention.value_length": 16,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 5e4,
}


def rewrite(
    path: Path,
    *,
    change: dict[str, str | int | float] | None = None,
    drop: set[str] | None = None,
    rows: list[bytes] | None = None,
    raw_key: bytes = b"",
    version: int = 3,
    data: int = 1 << 16,
) -> Path:
    """A GGUF file written byte by byte; its tensors are zeros."""
    keys = [key(name, value) for name, value in (KEYS | (change or {})).items() if name not in (drop or set())]
    keys += [raw_key] if raw_key else []
    rows = [row("token_embd.weight", (64, 96)), *(rows or [])]
    head = b"GGUF" + struct.pack("<IQQ", version, len(rows), len(keys)) + b"".join(keys) + b"".join(rows)
    path.write_bytes(head + bytes(-len(head) % 32 + data))
    return path


def test_the_handwritten_file_is_sound(tmp_path: Path) -> None:
    for version in (2, 3):
        checkpoint = open_checkpoint(rewrite(tmp_path / "m.gguf", version=version))
        assert checkpoint.tensor("model.embed_tokens.weight").shape == (96, 64)


@pytest.mark.parametrize("architecture", ["qwen35", "qwen3next", "qwen35moe", "llama4", ""])
def test_other_architectures(tmp_path: Path, architecture: str) -> None:
    """Case ckpt-04: a hybrid's converted values would load and give garbage, so it is refused by name."""
    path = rewrite(tmp_path / "m.gguf", change={"general.architecture": architecture})
    refused(path, saying=f"GGUF of architecture {architecture} is not supported", kind=UnsupportedModelError)


def test_a_hybrid_with_its_own_tensors(tmp_path: Path) -> None:
    rows = [row("blk.0.attn_norm.weight", (2,)), row("blk.0.ssm_a", (4,)), row("blk.0.ssm_dt.bias", (4,))]
    path = rewrite(tmp_path / "m.gguf", change={"general.architecture": "qwen35"}, rows=rows)
    refused(path, saying="GGUF of architecture qwen35 is not supported", kind=UnsupportedModelError)


@pytest.mark.parametrize(
    ("change", "saying"),
    [
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.expert_count": "eight"}, "mixture of experts"),
        ({"split.count": 3}, "several files"),
        ({"llama.rope.scaling.type": "yarn"}, "scaled rotary"),
        ({"llama.attention.value_length": 32}, "differ in width"),
        ({"llama.rope.dimension_count": 8}, "partial rotary"),
    ],
)
def test_llamas_that_would_run_wrongly(tmp_path: Path, change: dict[str, str | int | float], saying: str) -> None:
    refused(rewrite(tmp_path / "m.gguf", change=change), saying=saying, kind=UnsupportedModelError)


def test_rotary_factors_in_a_tensor(tmp_path: Path) -> None:
    path = rewrite(tmp_path / "m.gguf", rows=[row("rope_freqs.weight", (8,))])
    refused(path, saying="scaled rotary", kind=UnsupportedModelError)


@pytest.mark.parametrize(
    "name", ["llama.context_length", "llama.embedding_length", "llama.block_count", "llama.attention.head_count"]
)
def test_keys_that_are_missing_or_no_number(tmp_path: Path, name: str) -> None:
    refused(rewrite(tmp_path / "m.gguf", drop={name}), saying=f"{name} is None")
    for value in (0, "four"):
        refused(rewrite(tmp_path / "m.gguf", change={name: value}), saying=f"{name} is {value}")
    per_layer = string(name) + struct.pack("<IIQ2I", 9, 4, 2, 4, 8)
    refused(rewrite(tmp_path / "m.gguf", drop={name}, raw_key=per_layer), saying=rf"{name} is \[4, 8\]")


@pytest.mark.parametrize(
    ("kind", "shape", "named"),
    [
        (12, (256, 64), "Q4_K"),
        (30, (64, 64), "BF16"),
        (6, (64, 64), "Q5_0"),
        (999, (64, 64), "number 999"),
        (2, (48, 64), r"Q4_0 and shape \[64, 48\]"),
        (8, (64,), r"Q8_0 and shape \[64\]"),
        (0, (), r"F32 and shape \[\]"),
        (0, (64, 0), r"F32 and shape \[0, 64\]"),
    ],
)
def test_tensor_types_are_named(tmp_path: Path, kind: int, shape: tuple[int, ...], named: str) -> None:
    path = rewrite(tmp_path / "m.gguf", rows=[row("blk.0.ffn_up.weight", shape, kind)])
    refused(path, saying=rf"blk\.0\.ffn_up\.weight has type {named}", kind=UnsupportedModelError)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.001, 0.01, 0.2, 0.6, 0.999])
def test_truncated_files(tmp_path: Path, share: float) -> None:
    path = tmp_path / "m.gguf"
    write_gguf_llama(path, draw_model(), Q.Q4_1)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    refused(path, saying="is truncated")


@pytest.mark.parametrize("content", [b"", b"GGU", b"GGML" + bytes(100), b"\x80\x02PK" * 20])
def test_files_that_are_no_gguf(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    refused(tmp_path / "m.gguf", saying="is not a GGUF file|is truncated")


@pytest.mark.parametrize("version", [0, 1, 4, 0x03000000])
def test_other_versions(tmp_path: Path, version: int) -> None:
    path = rewrite(tmp_path / "m.gguf", version=version)
    refused(path, saying=f"GGUF version {version}", kind=UnsupportedModelError)


Damage = Callable[[Path], Path]


@pytest.mark.parametrize(
    ("damage", "saying"),
    [
        (lambda path: rewrite(path, raw_key=string("x") + struct.pack("<I", 77)), "a value of type 77"),
        (lambda path: rewrite(path, raw_key=string("x") + struct.pack("<IIQ", 9, 9, 1)), "a value of type 9"),
        (lambda path: rewrite(path, raw_key=string("x") + struct.pack("<IIQ", 9, 4, 2**60)), "truncated"),
        (
            lambda path: rewrite(path, raw_key=string("x") + struct.pack("<IIQ", 9, 8, 2**60)),
            "truncated|makes no sense",
        ),
        (lambda path: rewrite(path, raw_key=string("x") + struct.pack("<IQ", 8, 2**63)), "truncated"),
        (lambda path: rewrite(path, raw_key=key("general.alignment", 12)), "alignment 12"),
        (lambda path: rewrite(path, raw_key=key("general.alignment", "x")), "alignment x"),
        (lambda path: rewrite(path, raw_key=string(b"\xff\xfe") + struct.pack("<I", 0)), "a string"),
        (lambda path: rewrite(path, rows=[row("token_embd.weight", (64, 96))]), "entry of tensor token_embd"),
        (lambda path: rewrite(path, rows=[row("output.weight", (64, 96), 0, 3)]), "entry of tensor output"),
        (lambda path: rewrite(path, rows=[row("output.weight", (64, 2**58))]), "truncated"),
        (lambda path: rewrite(path, rows=[row("output.weight", (2**32, 2**32))]), "truncated"),
        (lambda path: rewrite(path, rows=[row("output.weight", (2, 2, 2, 2, 2))]), "5 dimensions"),
    ],
)
def test_damaged_headers(tmp_path: Path, damage: Damage, saying: str) -> None:
    refused(damage(tmp_path / "m.gguf"), saying=saying)


def test_random_damage_is_a_typed_error_or_harmless(tmp_path: Path, seed: int) -> None:
    """Flip bytes of a sound header: whatever happens, it is no bare exception of struct, numpy or torch."""
    path = tmp_path / "m.gguf"
    sound = rewrite(path, rows=[row("blk.0.attn_q.weight", (64, 64), 2, 24576)]).read_bytes()
    rng = np.random.default_rng(seed)
    outcomes = set()
    for _ in range(300):
        damaged = bytearray(sound)
        position = int(rng.integers(4, len(sound) - (1 << 16)))
        damaged[position] = int(rng.integers(256))
        path.write_bytes(damaged)
        outcomes.add(_outcome(path))
    assert "typed" in outcomes


def _outcome(path: Path) -> str:
    try:
        checkpoint = open_checkpoint(path)
        for name in checkpoint.names():
            checkpoint.tensor(name)
    except LabkitError:
        return "typed"
    return "read"


def test_without_an_embedding(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("output_norm.weight", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refused(tmp_path / "m.gguf", saying=r"no tensor token_embd\.weight")


def test_missing_and_unknown_tensors(tmp_path: Path) -> None:
    rows = [row("blk.0.attn_sinks.weight", (4,)), row("blk.0.attn_q.weight", (64, 32), 0, 32768)]
    checkpoint = open_checkpoint(rewrite(tmp_path / "m.gguf", rows=rows))
    assert "blk.0.attn_sinks.weight" in str(checkpoint.report)
    with pytest.raises(CheckpointError, match=r"no tensor model\.layers\.0\.mlp\.up_proj\.weight"):
        checkpoint.linear("model.layers.0.mlp.up_proj")
    with pytest.raises(CheckpointError, match="has 32 rows where the heads need 64"):
        checkpoint.linear("model.layers.0.self_attn.q_proj")


@pytest.mark.parametrize("qtype", TYPES)
def test_values_that_are_not_finite(tmp_path: Path, qtype: gguf.GGMLQuantizationType) -> None:
    """In F32 and F16 a weight, in the others the scale of a block (their first two bytes)."""
    path = tmp_path / "m.gguf"
    write_gguf_llama(path, draw_model(), qtype)
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_down.weight")
    data = bytearray(path.read_bytes())
    bad = struct.pack("<f", np.nan) if qtype == Q.F32 else struct.pack("<e", np.inf)
    data[tensor.data_offset : tensor.data_offset + len(bad)] = bad
    path.write_bytes(data)
    checkpoint = open_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.down_proj\.weight.* holds"):
        checkpoint.linear("model.layers.1.mlp.down_proj")
