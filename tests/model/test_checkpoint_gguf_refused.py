"""GGUF files that are broken, foreign, or would run wrongly: each refused by name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from helpers.gguf_bytes import key, row, string, write_raw_gguf
from helpers.gguf_models import draw_model
from helpers.packers import write_gguf_llama

from labkit.errors import CheckpointError, LabkitError, UnsupportedModelError
from labkit.model.checkpoint import open_checkpoint

pytestmark = pytest.mark.usefixtures("seed")

Q = gguf.GGMLQuantizationType
TYPES = [Q.F32, Q.F16, Q.Q8_0, Q.Q4_0, Q.Q4_1]


def refused(path: Path, *, saying: str, kind: type[LabkitError] = CheckpointError) -> None:
    with pytest.raises(kind, match=saying) as caught:
        open_checkpoint(path)
    assert caught.value.cure


def test_the_handwritten_file_is_sound(tmp_path: Path) -> None:
    for version in (2, 3):
        checkpoint = open_checkpoint(write_raw_gguf(tmp_path / "m.gguf", version=version))
        assert checkpoint.tensor("model.embed_tokens.weight").shape == (96, 64)


@pytest.mark.parametrize("architecture", ["qwen35", "qwen3next", "qwen35moe", "llama4", ""])
def test_other_architectures(tmp_path: Path, architecture: str) -> None:
    """Case ckpt-04: a hybrid's converted values would load and give garbage, so it is refused by name."""
    path = write_raw_gguf(tmp_path / "m.gguf", change={"general.architecture": architecture})
    refused(path, saying=f"GGUF of architecture {architecture} is not supported", kind=UnsupportedModelError)


def test_a_hybrid_with_its_own_tensors(tmp_path: Path) -> None:
    rows = [row("blk.0.attn_norm.weight", (2,)), row("blk.0.ssm_a", (4,)), row("blk.0.ssm_dt.bias", (4,))]
    path = write_raw_gguf(tmp_path / "m.gguf", change={"general.architecture": "qwen35"}, rows=rows)
    refused(path, saying="GGUF of architecture qwen35 is not supported", kind=UnsupportedModelError)


@pytest.mark.parametrize(
    ("change", "saying"),
    [
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.expert_count": "eight"}, "mixture of experts"),
        ({"split.count": 3}, "several files"),
        ({"llama.rope.scaling.type": "yarn"}, "scaled rotary"),
        ({"llama.rope.scaling.factor": 4.0}, "scaled rotary"),
        ({"llama.rope.scaling.factor": "four"}, "scaled rotary"),
        ({"llama.rope.scale_linear": 2.0}, "scaled rotary"),
        ({"llama.attention.value_length": 32}, "differ in width"),
        ({"llama.rope.dimension_count": 8}, "partial rotary"),
    ],
)
def test_llamas_that_would_run_wrongly(tmp_path: Path, change: dict[str, str | int | float], saying: str) -> None:
    refused(write_raw_gguf(tmp_path / "m.gguf", change=change), saying=saying, kind=UnsupportedModelError)


@pytest.mark.parametrize(
    "change",
    [
        {"llama.rope.scaling.factor": 0.0},
        {"llama.rope.scaling.factor": 1.0},
        {"llama.rope.scale_linear": 1.0},
        {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0},
    ],
)
def test_rotary_factors_that_scale_nothing(tmp_path: Path, change: dict[str, str | int | float]) -> None:
    assert open_checkpoint(write_raw_gguf(tmp_path / "m.gguf", change=change)).config["rope_theta"] == 5e4


def test_rotary_factors_in_a_tensor(tmp_path: Path) -> None:
    path = write_raw_gguf(tmp_path / "m.gguf", rows=[row("rope_freqs.weight", (8,))])
    refused(path, saying="scaled rotary", kind=UnsupportedModelError)


@pytest.mark.parametrize(
    "name", ["llama.context_length", "llama.embedding_length", "llama.block_count", "llama.attention.head_count"]
)
def test_keys_that_are_missing_or_no_number(tmp_path: Path, name: str) -> None:
    refused(write_raw_gguf(tmp_path / "m.gguf", drop={name}), saying=f"{name} is None")
    for value in (0, "four"):
        refused(write_raw_gguf(tmp_path / "m.gguf", change={name: value}), saying=f"{name} is {value}")
    per_layer = string(name) + struct.pack("<IIQ2I", 9, 4, 2, 4, 8)
    refused(write_raw_gguf(tmp_path / "m.gguf", drop={name}, raw_key=per_layer), saying=rf"{name} is \[4, 8\]")


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
    path = write_raw_gguf(tmp_path / "m.gguf", rows=[row("blk.0.ffn_up.weight", shape, kind)])
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
    path = write_raw_gguf(tmp_path / "m.gguf", version=version)
    refused(path, saying=f"GGUF version {version}", kind=UnsupportedModelError)


Damage = Callable[[Path], Path]


@pytest.mark.parametrize(
    ("damage", "saying"),
    [
        (lambda path: write_raw_gguf(path, raw_key=string("x") + struct.pack("<I", 77)), "a value of type 77"),
        (lambda path: write_raw_gguf(path, raw_key=string("x") + struct.pack("<IIQ", 9, 9, 1)), "a value of type 9"),
        (lambda path: write_raw_gguf(path, raw_key=string("x") + struct.pack("<IIQ", 9, 4, 2**60)), "truncated"),
        (
            lambda path: write_raw_gguf(path, raw_key=string("x") + struct.pack("<IIQ", 9, 8, 2**60)),
            "truncated|makes no sense",
        ),
        (lambda path: write_raw_gguf(path, raw_key=string("x") + struct.pack("<IQ", 8, 2**63)), "truncated"),
        (lambda path: write_raw_gguf(path, raw_key=key("general.alignment", 12)), "alignment 12"),
        (lambda path: write_raw_gguf(path, raw_key=key("general.alignment", "x")), "alignment x"),
        (lambda path: write_raw_gguf(path, raw_key=string(b"\xff\xfe") + struct.pack("<I", 0)), "a string"),
        (lambda path: write_raw_gguf(path, rows=[row("token_embd.weight", (64, 96))]), "entry of tensor token_embd"),
        (lambda path: write_raw_gguf(path, rows=[row("output.weight", (64, 96), 0, 3)]), "entry of tensor output"),
        (lambda path: write_raw_gguf(path, rows=[row("output.weight", (64, 2**58))]), "truncated"),
        (lambda path: write_raw_gguf(path, rows=[row("output.weight", (2**32, 2**32))]), "truncated"),
        (lambda path: write_raw_gguf(path, rows=[row("output.weight", (2, 2, 2, 2, 2))]), "5 dimensions"),
    ],
)
def test_damaged_headers(tmp_path: Path, damage: Damage, saying: str) -> None:
    refused(damage(tmp_path / "m.gguf"), saying=saying)


def test_random_damage_is_a_typed_error_or_harmless(tmp_path: Path, seed: int) -> None:
    """Flip bytes of a sound header: whatever happens, it is no bare exception of struct, numpy or torch."""
    path = tmp_path / "m.gguf"
    sound = write_raw_gguf(path, rows=[row("blk.0.attn_q.weight", (64, 64), 2, 24576)]).read_bytes()
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
    checkpoint = open_checkpoint(write_raw_gguf(tmp_path / "m.gguf", rows=rows))
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
