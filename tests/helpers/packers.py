"""Checkpoints for tests, packed from the published layouts: the loader under test shares no code with this.

AutoAWQ "gemm": ``qweight`` int32 [K, N/8]; output 8c + j of input k sits in bits 4 * AWQ_PLACE[j] of word (k, c).
GGUF: blocks and file by the ``gguf`` package; q and k rows reordered as llama.cpp's converter does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

AWQ_PLACE = (0, 4, 1, 5, 2, 6, 3, 7)
State = dict[str, Tensor]


def quantize_rows(weight: Tensor, group_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round to nearest, asymmetric: q [N, K] and z [N, K/g] in 0..15, s [N, K/g] in float16."""
    w = weight.detach().float().numpy()
    grouped = w.reshape(w.shape[0], -1, group_size)
    low, high = np.minimum(grouped.min(-1), 0), np.maximum(grouped.max(-1), 0)
    scale = np.maximum((high - low) / 15, 1e-4).astype(np.float16)
    zero = np.clip(np.rint(-low / scale.astype(np.float32)), 0, 15)
    q = np.clip(np.rint(grouped / scale.astype(np.float32)[..., None]) + zero[..., None], 0, 15)
    return q.reshape(w.shape).astype(np.int64), zero.astype(np.int64), scale


def dequantize_rows(q: np.ndarray, zero: np.ndarray, scale: np.ndarray) -> Tensor:
    """w = (q - z) * s in float32, one group after another."""
    size = q.shape[1] // zero.shape[1]
    w = np.empty(q.shape, np.float32)
    for group in range(zero.shape[1]):
        part = slice(group * size, (group + 1) * size)
        w[:, part] = (q[:, part] - zero[:, group : group + 1]) * scale[:, group : group + 1].astype(np.float32)
    return torch.from_numpy(w)


def awq_words(rows: np.ndarray) -> Tensor:
    """Pack [R, N] numbers 0..15 along N into int32 [R, N/8]."""
    words = np.zeros((rows.shape[0], rows.shape[1] // 8), np.uint32)
    for column in range(rows.shape[1]):
        words[:, column // 8] |= rows[:, column].astype(np.uint32) << np.uint32(4 * AWQ_PLACE[column % 8])
    return torch.from_numpy(words.view(np.int32).copy())


def awq_triplet(q: np.ndarray, zero: np.ndarray, scale: np.ndarray) -> State:
    """The three tensors of a module, from q [N, K], z and s [N, K/g]."""
    scales = torch.from_numpy(np.ascontiguousarray(scale.T))
    return {"qweight": awq_words(q.T), "qzeros": awq_words(zero.T), "scales": scales}


def awq_config(group_size: int = 128, **changes: Any) -> dict[str, Any]:
    """The ``quantization_config`` of such a checkpoint."""
    config = {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": group_size, "zero_point": True}
    return config | changes


def own_state(model: nn.Module) -> State:
    """The tensors that a checkpoint of the model holds (a tied head is not among them)."""
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    if model.config.get_text_config().tie_word_embeddings:
        state.pop("lm_head.weight", None)
    return state


def write_safetensors(
    directory: Path, state: Mapping[str, Tensor], config: Mapping[str, Any], shards: int = 1, prefix: str = "model."
) -> None:
    """A checkpoint directory. prefix: what ``model.`` at the head of a name becomes."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, default=str))
    named = {_with_prefix(name, prefix): tensor.contiguous() for name, tensor in state.items()}
    if shards == 1:
        save_file(named, directory / "model.safetensors")
        return
    names = sorted(named)
    weight_map = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = names[number::shards]
        save_file({name: named[name] for name in part}, directory / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def _with_prefix(name: str, prefix: str) -> str:
    if not name.startswith("model.") or name.startswith("model.visual."):
        return name
    return prefix + name.removeprefix("model.")


def write_awq_checkpoint(
    directory: Path, model: nn.Module, *, group_size: int = 128, skip: Collection[str] = (), prefix: str = "model."
) -> State:
    """Quantize the linear modules of a transformers model and write an AutoAWQ checkpoint.

    skip: parts of names of modules to leave as they are (the head always is, and what AutoAWQ cannot pack).
    Returns the full state dict with the dequantized weights in place of the quantized ones.
    """
    stored, dequantized = own_state(model), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, module in model.named_modules():
        packable = isinstance(module, nn.Linear) and not module.out_features % 8 and not module.in_features % group_size
        if not packable or any(part in name for part in ("lm_head", *skip)):
            continue
        parts = quantize_rows(module.weight, group_size)
        del stored[f"{name}.weight"]
        stored |= {f"{name}.{field}": tensor for field, tensor in awq_triplet(*parts).items()}
        dequantized[f"{name}.weight"] = dequantize_rows(*parts)
    config = model.config.to_dict() | {"quantization_config": awq_config(group_size)}
    write_safetensors(directory, stored, config, prefix=prefix)
    return dequantized


GGUF_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GGUF_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    """``model.layers.3.mlp.up_proj.weight`` -> ``blk.3.ffn_up.weight``."""
    module, _, field = name.rpartition(".")
    if module in GGUF_TOP:
        return f"{GGUF_TOP[module]}.{field}"
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{GGUF_PARTS[part]}.{field}"


def interleave_heads(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as llama.cpp wants them: the two halves of each head interleaved."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def split_heads(weight: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of ``interleave_heads``."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf_llama(
    path: Path,
    model: nn.Module,
    qtype: gguf.GGMLQuantizationType,
    *,
    embedding_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    extra: Callable[[gguf.GGUFWriter], None] | None = None,
) -> State:
    """Write a transformers Llama as GGUF, projections (and an untied head) in ``qtype``, norms in F32.

    extra: called with the writer, to add more keys (a tokenizer, say).
    Returns the full state dict with the dequantized weights, in transformers' row order.
    """
    writer = gguf.GGUFWriter(path, "llama")
    _write_llama_keys(writer, model.config)
    if extra is not None:
        extra(writer)
    dequantized = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    for name, tensor in own_state(model).items():
        kind = _gguf_type(name, tensor, qtype, embedding_type)
        count = heads.get(name.split(".")[-2])
        array = tensor.float().numpy()
        data = gguf.quants.quantize(interleave_heads(array, count) if count else array, kind)
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
        back = gguf.quants.dequantize(data, kind).reshape(array.shape)
        dequantized[name] = torch.from_numpy(np.ascontiguousarray(split_heads(back, count) if count else back))
    if model.config.tie_word_embeddings:
        dequantized["lm_head.weight"] = dequantized["model.embed_tokens.weight"]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return dequantized


def _gguf_type(
    name: str, tensor: Tensor, qtype: gguf.GGMLQuantizationType, embedding_type: gguf.GGMLQuantizationType
) -> gguf.GGMLQuantizationType:
    if tensor.ndim == 1:
        return gguf.GGMLQuantizationType.F32
    return embedding_type if name.startswith("model.embed_tokens") else qtype


def _write_llama_keys(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    for token, add in (("bos_token_id", writer.add_bos_token_id), ("eos_token_id", writer.add_eos_token_id)):
        if isinstance(getattr(config, token), int):
            add(getattr(config, token))
