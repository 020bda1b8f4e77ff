"""The memory budget: published totals, the budget of Qwen3.5-27B on two V100s, and checkpoints read by header alone."""

from __future__ import annotations

import io
import json
import random
import struct
from math import prod
from pathlib import Path
from typing import Any

import gguf
import pytest
import transformers
from helpers.packers import write_gguf_llama
from rich.console import Console

from labkit.bench.fit import GIB, fit
from labkit.bench.fit_modules import list_modules, read_geometry, vision_parameters
from labkit.bench.fit_weights import weigh
from labkit.errors import CheckpointError, ConfigError, ModelNotFoundError, UnsupportedModelError
from labkit.model.named import NAMED_CONFIGS, VISION_TOWERS

SPEC: dict[str, Any] = {"gpus": 2, "gpu_memory_gib": 16, "mtp": True, "slots": 8}

# Weights per GPU and room for KV in GiB, then tokens at fp16, int8 and int4: two 16 GB V100s, 8 slots, MTP.
BUDGET_27B = {
    "g128-sym": (8.23, 5.30, 163_000, 324_000, 581_000),
    "g32-asym": (8.94, 4.59, 141_000, 281_000, 503_000),
    "quanttrio": (9.35, 4.18, 129_000, 256_000, 458_000),
}
PUBLISHED_TOTALS = {
    "Qwen3.5-0.8B": 0.8734,
    "Qwen3.5-2B": 2.2741,
    "Qwen3.5-4B": 4.6599,
    "Qwen3.5-9B": 9.6531,
    "Qwen3.5-27B": 27.7814,
    "Qwen3.5-35B-A3B": 35.9507,
}
LANGUAGE_MODEL_GIB = {
    ("Qwen3.5-27B", "quanttrio"): 18.70,
    ("Qwen3.5-27B", "g32-asym"): 17.88,
    ("Qwen3.5-27B", "g32-sym"): 17.53,
    ("Qwen3.5-27B", "g128-sym"): 16.47,
    ("Qwen3.5-27B", "gptq-mlp"): 26.50,
    ("Qwen3.5-35B-A3B", "gptq-mlp"): 20.14,
    ("Qwen3.5-35B-A3B", "quanttrio"): 21.3,
    ("Qwen3.5-35B-A3B", "g32-asym"): 21.90,
    ("Qwen3.5-35B-A3B", "g32-sym"): 21.43,
}


@pytest.mark.parametrize(("recipe", "row"), BUDGET_27B.items())
def test_budget_of_27b_on_two_v100s(recipe: str, row: tuple[float, ...]) -> None:
    reports = [fit("Qwen3.5-27B", weights=recipe, kv_cache_dtype=dtype, **SPEC) for dtype in ("fp16", "int8", "int4")]
    measured = (reports[0].weight_bytes / GIB, reports[0].kv_bytes_left / GIB, *(r.max_tokens for r in reports))
    assert measured == pytest.approx(row, rel=0.02)
    assert reports[0].mtp_bytes / GIB == pytest.approx(0.40, rel=0.02)
    assert reports[0].state_bytes / GIB == pytest.approx(0.573, rel=0.02)


def test_full_context_of_27b_needs_int8() -> None:
    half = fit("Qwen3.5-27B", weights="g128-sym", context=262_144, **SPEC)
    assert not half.fits
    assert "int8" in half.reason
    assert fit("Qwen3.5-27B", weights="g128-sym", context=262_144, kv_cache_dtype="int8", **SPEC).fits


@pytest.mark.parametrize(("name", "billions"), PUBLISHED_TOTALS.items())
def test_parameter_counts_equal_the_published_ones(name: str, billions: float) -> None:
    modules = list_modules(read_geometry(NAMED_CONFIGS[name]))
    total = sum(module.parameters for module in modules) + vision_parameters(VISION_TOWERS[name])
    assert total / 1e9 == pytest.approx(billions, rel=1e-4)


def test_parameter_counts_of_27b_by_kind() -> None:
    modules = list_modules(read_geometry(NAMED_CONFIGS["Qwen3.5-27B"]))
    counts = {
        "mlp": sum(m.parameters for m in modules if ".mlp." in m.name and not m.is_mtp),
        "attention": sum(m.parameters for m in modules if ".self_attn." in m.name and not m.is_mtp),
        "delta": sum(m.parameters for m in modules if ".linear_attn." in m.name),
        "mtp": sum(m.parameters for m in modules if m.is_mtp),
        "embedding": sum(m.parameters for m in modules if m.name == "model.embed_tokens"),
    }
    expected = {
        "mlp": 17.1128,
        "attention": 1.6777,
        "delta": 5.5365 + 0.0236 + 0.0026,
        "mtp": 0.4247,
        "embedding": 1.2714,
    }
    assert {kind: count / 1e9 for kind, count in counts.items()} == pytest.approx(expected, rel=1e-3)
    text = [m for m in modules if not m.is_mtp]
    assert len(text) == 851  # the tensors of the published checkpoint without vision and MTP
    assert len(modules) - len(text) == 15


@pytest.mark.parametrize(("key", "gib"), LANGUAGE_MODEL_GIB.items())
def test_size_of_published_quantizations(key: tuple[str, str], gib: float) -> None:
    name, recipe = key
    assert fit(name, weights=recipe).weight_bytes / GIB == pytest.approx(gib, rel=0.01)


@pytest.mark.parametrize(
    ("name", "elements"), [("Qwen3.5-27B", 32), ("Qwen3.5-35B-A3B", 10), ("Qwen3.5-9B", 16), ("Qwen3.5-0.8B", 6)]
)
def test_kv_bytes_per_token(name: str, elements: int) -> None:
    """Kibi-elements of K and V per token, times the bytes of the dtype and of its scales."""
    per_token = {
        dtype: fit(name, kv_cache_dtype=dtype).kv_bytes_per_token for dtype in ("fp16", "int8", "int4", "k8v4")
    }
    assert per_token["fp16"] == 2 * elements * 1024
    assert per_token["int8"] == elements * 1024 * (1 + 2 / 256)
    assert per_token["int4"] == elements * 1024 * (1 / 2 + 4 / 64)
    assert per_token["k8v4"] == (per_token["int8"] + per_token["int4"]) / 2


def test_state_bytes_per_sequence() -> None:
    whole = fit("Qwen3.5-27B").state_bytes_per_sequence
    assert whole == 48 * (48 * 128 * 128 * 4 + 10_240 * 3 * 2)
    assert fit("Qwen3.5-27B", gpus=2).state_bytes_per_sequence == whole // 2


def test_tensor_parallel_shares_add_up() -> None:
    """Only what is replicated (norms, the router) makes two halves weigh more than the whole."""
    for name in ("Qwen3.5-27B", "Qwen3.5-35B-A3B", "Qwen3.5-0.8B"):
        one, two = (fit(name, gpus=gpus).weight_bytes for gpus in (1, 2))
        replicated = sum(w.nbytes for w in weigh(name).weights if w.module.split == "whole" and not w.module.is_mtp)
        assert 2 * two == pytest.approx(one + replicated, abs=4)


def test_more_ranks_than_kv_heads_copies_them() -> None:
    two, four = (fit("Qwen3.5-35B-A3B", gpus=gpus) for gpus in (2, 4))
    assert four.kv_bytes_per_token == two.kv_bytes_per_token


def llama_config(**changes: Any) -> dict[str, Any]:
    base = {
        "model_type": "llama",
        "vocab_size": 1024,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
    }
    return {**base, **changes}


def test_llama_by_hand() -> None:
    layer = 2 * 256 + 256 * (256 + 128 + 128 + 256) + 3 * 256 * 512
    parameters = 2 * 1024 * 256 + 256 + 3 * layer
    report = fit(llama_config(), gpu_memory_gib=2)
    assert report.parameters == parameters
    assert report.weight_bytes == 2 * parameters
    assert report.kv_bytes_per_token == 3 * 2 * 2 * 64 * 2
    assert report.state_bytes == 0
    assert fit(llama_config(tie_word_embeddings=True)).parameters == parameters - 1024 * 256


def test_assumptions_are_parameters() -> None:
    base, roomy = fit("Qwen3.5-9B"), fit("Qwen3.5-9B", gpu_memory_gib=32, reserved_gib=1.0, overhead_gib=0.25)
    assert roomy.kv_bytes_left - base.kv_bytes_left == (32 - 1.0 - 0.25 - 16 + 0.5 + 1.0) * GIB
    fewer = fit("Qwen3.5-9B", slots=2)
    assert fewer.kv_bytes_left - base.kv_bytes_left == 6 * base.state_bytes_per_sequence


def test_labkit_packing_is_reported() -> None:
    """A group's scale and zero point take 4 bytes in labkit's format, 2.5 in the file: 1 GiB over 27B at group 32."""
    file, packed = (fit("Qwen3.5-27B", weights="g32-asym", packing=packing) for packing in ("file", "labkit"))
    assert packed.weight_bytes - file.weight_bytes == pytest.approx(file.labkit_packing_bytes, abs=2)
    assert file.labkit_packing_bytes > GIB
    assert packed.labkit_packing_bytes == 0


# --- checkpoints by header ------------------------------------------------------------------------------------------


def write_headers(directory: Path, config: dict[str, Any], tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """A checkpoint whose tensor data is a hole in the file: only its headers can be read with any sense."""
    size = {"F16": 2, "BF16": 2, "F32": 4, "I32": 4, "I64": 8}
    offset, header = 0, {}
    for name, (dtype, shape) in tensors.items():
        end = offset + size[dtype] * prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    raw = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + offset)
    (directory / "config.json").write_text(json.dumps(config))


Tensors = dict[str, tuple[str, tuple[int, ...]]]


def awq(rows: int, cols: int, group: int) -> Tensors:
    groups = cols // group
    return {
        "qweight": ("I32", (cols, rows // 8)),
        "qzeros": ("I32", (groups, rows // 8)),
        "scales": ("F16", (groups, rows)),
    }


def pack_quantized(rows: int, cols: int, group: int) -> Tensors:
    groups = cols // group
    return {
        "weight_packed": ("I32", (rows, cols // 8)),
        "weight_scale": ("BF16", (rows, groups)),
        "weight_zero_point": ("I32", (rows // 8, groups)),
        "weight_shape": ("I64", (2,)),
    }


def mixed_checkpoint(config: dict[str, Any], kinds: dict[str, Any], wrapper: str = "") -> Tensors:
    """Tensors for a config: modules whose name ends with a key of ``kinds`` are packed, the others are 16-bit."""
    tensors: Tensors = {}
    for module in list_modules(read_geometry(config)):
        name = module.name.replace("model.", f"model.{wrapper}", 1) if wrapper else module.name
        packer = next((packer for suffix, packer in kinds.items() if module.name.endswith(suffix)), None)
        if packer is not None:
            tensors |= {f"{name}.{field}": value for field, value in packer(*module.shape).items()}
        elif name.endswith(("A_log", "dt_bias")):
            tensors[name] = ("F32" if module.fp32 else "BF16", module.shape)
        else:
            tensors[f"{name}.weight"] = ("F32" if module.fp32 else "BF16", module.shape)
    return tensors


def small_qwen(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    return {
        **NAMED_CONFIGS["Qwen3.5-27B"],
        "vocab_size": 1024,
        "hidden_size": 128 * rng.randint(2, 4),
        "num_hidden_layers": 4 * rng.randint(1, 3),
        "num_attention_heads": 2 * rng.randint(1, 3),
        "num_key_value_heads": 2,
        "intermediate_size": 256 * rng.randint(1, 4),
        "linear_num_value_heads": 16 * rng.randint(1, 3),
    }


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("wrapper", ["", "language_model."])
def test_mixed_checkpoint_by_headers(tmp_path: Path, seed: int, wrapper: str) -> None:
    config = small_qwen(seed)
    kinds = {
        "o_proj": lambda n, k: awq(n, k, 128),
        "up_proj": lambda n, k: awq(n, k, 64),
        "down_proj": lambda n, k: pack_quantized(n, k, 32),
    }
    tensors = mixed_checkpoint(config, kinds, wrapper)
    outer = {"model_type": "qwen3_5", "text_config": config} if wrapper else config
    vision = {"model.visual.patch_embed.weight": ("BF16", (1152, 1536))} if wrapper else {}
    write_headers(tmp_path, outer, {**tensors, **vision})
    size = {"F16": 2, "BF16": 2, "F32": 4, "I32": 4, "I64": 8}
    stored = {name: size[dtype] * prod(shape) for name, (dtype, shape) in tensors.items()}
    report = fit(tmp_path, mtp=True)
    assert report.weight_bytes == sum(n for name, n in stored.items() if not name.startswith("mtp."))
    assert report.mtp_bytes == sum(n for name, n in stored.items() if name.startswith("mtp."))
    assert "headers" in report.weights
    # The same directory under a recipe answers a what-if instead.
    assert fit(tmp_path, weights="fp16").weight_bytes > report.weight_bytes
    assert fit(tmp_path, gpus=2, mtp=True).weight_bytes < 0.6 * report.weight_bytes


def test_awq_headers_weigh_what_the_recipe_says(tmp_path: Path) -> None:
    config = small_qwen(7)
    names = ("_proj", "in_proj_qkv", "in_proj_z")
    tensors = mixed_checkpoint(config, {suffix: lambda n, k: awq(n, k, 128) for suffix in names})
    tensors = {name: value for name, value in tensors.items() if not name.startswith("mtp.")}
    write_headers(tmp_path, config, tensors)
    by_header, by_recipe = fit(tmp_path), fit(config, weights="g128-awq")
    assert by_header.weight_bytes == by_recipe.weight_bytes
    assert by_header.labkit_packing_bytes == by_recipe.labkit_packing_bytes > 0
    with pytest.raises(ConfigError, match="no MTP block"):
        fit(tmp_path, mtp=True)


def small_mixture() -> dict[str, Any]:
    return {
        **NAMED_CONFIGS["Qwen3.5-35B-A3B"],
        "vocab_size": 1024,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_experts": 4,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 256,
    }


@pytest.mark.parametrize("fused", [True, False])
def test_experts_fused_or_one_by_one(tmp_path: Path, fused: bool) -> None:
    config = small_mixture()
    tensors: Tensors = {}
    for name, (dtype, shape) in mixed_checkpoint(config, {}).items():
        if ".experts." not in name:
            tensors[name] = (dtype, shape)
        elif not fused:
            stem, _, rest = name.partition(".experts.")
            tensors |= {f"{stem}.experts.{e}.{rest}": (dtype, shape[1:]) for e in range(shape[0])}
        elif "gate_proj" in name:
            stem = name.removesuffix("gate_proj.weight")
            tensors[f"{stem}gate_up_proj"] = (dtype, (shape[0], 2 * shape[1], shape[2]))
        elif "down_proj" in name:
            tensors[name.removesuffix(".weight")] = (dtype, shape)
    write_headers(tmp_path, config, tensors)
    report, by_recipe = fit(tmp_path, gpus=2, mtp=True), fit(config, gpus=2, mtp=True)
    assert report.parameters == by_recipe.parameters
    assert (report.weight_bytes, report.mtp_bytes) == (by_recipe.weight_bytes, by_recipe.mtp_bytes)


def test_head_in_the_file_counts_even_if_the_config_ties_it(tmp_path: Path) -> None:
    config = {**small_qwen(1), "tie_word_embeddings": False}
    tensors = mixed_checkpoint(config, {})
    write_headers(tmp_path, {**config, "tie_word_embeddings": True}, tensors)
    assert fit(tmp_path).weight_bytes == fit(config).weight_bytes


def test_fp32_files_are_loaded_in_half(tmp_path: Path) -> None:
    config = llama_config()
    write_headers(tmp_path, config, {n: ("F32", shape) for n, (_, shape) in mixed_checkpoint(config, {}).items()})
    assert fit(tmp_path).weight_bytes == fit(config).weight_bytes


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "F16"])
def test_gguf_by_its_header(tmp_path: Path, kind: str) -> None:
    """Nine tensors a layer; 4-bit matrices keep their 18 or 20 bytes per 32 weights, the rest takes half precision."""
    config = llama_config(tie_word_embeddings=True, num_hidden_layers=2)
    shapes = transformers.LlamaConfig(**{key: value for key, value in config.items() if key != "model_type"})
    model = transformers.LlamaForCausalLM(shapes)
    path = tmp_path / "small.gguf"
    write_gguf_llama(path, model, gguf.GGMLQuantizationType[kind])
    projections = 2 * (256 * (256 + 128 + 128 + 256) + 3 * 256 * 512)
    others = 1024 * 256 + 5 * 256
    per_weight = {"Q4_0": 18 / 32, "Q4_1": 20 / 32}.get(kind, 2)
    report = fit(path)
    assert report.parameters == projections + others
    assert report.weight_bytes == projections * per_weight + others * 2
    assert report.labkit_packing_bytes == (projections * 2 / 32 if kind == "Q4_0" else 0)
    assert fit(path, weights="fp16").weight_bytes == 2 * (projections + others)


def test_smollm2_before_it_was_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="not been fetched") as caught:
        fit("smollm2")
    assert "labkit demo" in caught.value.cure


def test_labkit_tiny() -> None:
    report = fit("labkit-tiny", mtp=True, gpu_memory_gib=2)
    assert report.fits
    assert report.parameters + sum(w.module.parameters for w in weigh("labkit-tiny").weights if w.module.is_mtp) > 12e6
    assert report.max_position == 2048


def test_missing_and_foreign_tensors_are_refused(tmp_path: Path, seed: int) -> None:
    config = llama_config()
    tensors = mixed_checkpoint(config, {})
    victim = random.Random(seed).choice([name for name in tensors if "layers.1" in name])
    write_headers(tmp_path, config, {name: value for name, value in tensors.items() if name != victim})
    with pytest.raises(CheckpointError, match=victim.removesuffix(".weight").replace(".", r"\.")):
        fit(tmp_path)
    write_headers(tmp_path, llama_config(intermediate_size=1024), tensors)
    with pytest.raises(CheckpointError, match=r"gate_proj has 131,072 weights .* asks for 262,144"):
        fit(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"gpus": 3}, "ranks"),
        ({"gpus": 0}, "gpus"),
        ({"gpus": True}, "gpus"),
        ({"slots": -1}, "slots"),
        ({"context": 0}, "context"),
        ({"context": 1.5}, "context"),
        ({"gpu_memory_gib": float("nan")}, "gpu_memory_gib"),
        ({"gpu_memory_gib": -1}, "gpu_memory_gib"),
        ({"overhead_gib": "1"}, "overhead_gib"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
        ({"packing": "zip"}, "packing"),
        ({"weights": "int3"}, "weights"),
    ],
)
def test_impossible_arguments(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        fit("Qwen3.5-27B", **arguments)
    assert caught.value.cure


def test_groups_are_not_cut() -> None:
    with pytest.raises(ConfigError, match="INT4 groups of 128"):
        fit("Qwen3.5-35B-A3B", weights="g128-sym", gpus=8)
    assert fit("Qwen3.5-35B-A3B", weights="g32-sym", gpus=8).fits


def test_unknown_models() -> None:
    with pytest.raises(ModelNotFoundError, match="known name"):
        fit("Qwen9-1B")
    with pytest.raises(ModelNotFoundError, match="known name"):
        fit("absent.gguf")
    with pytest.raises(UnsupportedModelError, match="gpt2"):
        fit({"model_type": "gpt2"})
    with pytest.raises(CheckpointError, match="num_experts"):
        fit({**NAMED_CONFIGS["Qwen3.5-35B-A3B"], "num_experts": None})


def test_reasons_name_a_change_that_really_fits() -> None:
    report = fit("Qwen3.5-27B", weights="g128-sym")
    assert "On 2 GPUs it would fit" in report.reason
    assert fit("Qwen3.5-27B", weights="g128-sym", gpus=2).fits
    assert "shorter" in fit("labkit-tiny", context=4096).reason
    assert "smaller" in fit("Qwen3.5-27B", gpu_memory_gib=2).reason


def test_report_as_json_and_as_table() -> None:
    report = fit("random:Qwen3.5-27B", weights="quanttrio", **SPEC)
    assert json.loads(json.dumps(report.to_dict()))["max_tokens"] == report.max_tokens
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report.render())
    text = console.export_text()
    assert "9.35 GiB" in text
    assert f"{report.max_tokens:,}" in text
