"""The output folder: weights in shards, config.json, tokenizer."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from labkit.awq.partial import write_tensors
from labkit.awq.source import DenseSource
from labkit.engine.gguf_tokenizer import MODEL, read_gguf
from labkit.model.config import Qwen35Config, text_config

SHARD_BYTES = 2 << 30  # of a file, unless one tensor is larger: what is held in memory while it is written
COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "LICENSE",
)
Tensors = dict[str, Tensor]


def write_weights(out: Path, pieces: Iterable[Tensors]) -> None:
    """Write the pieces as model.safetensors, or as shards with an index where they are more than one file holds.

    A file appears under its final name only when it is whole. Raises OSError.
    """
    files, where, total = 0, list[dict[str, int]](), 0
    for shard in _shards(pieces):
        write_tensors(out / _scratch(files), shard)
        where.append(dict.fromkeys(shard, files))
        total += sum(tensor.nbytes for tensor in shard.values())
        files += 1
    names = [_shard_name(number, files) for number in range(files)]
    for number, name in enumerate(names):
        os.replace(out / _scratch(number), out / name)
    if files > 1:
        weight_map = {tensor: names[number] for shard in where for tensor, number in shard.items()}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        write_json(out / "model.safetensors.index.json", index)


def _shards(pieces: Iterable[Tensors]) -> Iterator[Tensors]:
    shard: Tensors = {}
    size = 0
    for name, tensor in (item for piece in pieces for item in sorted(piece.items())):
        if shard and size + tensor.nbytes > SHARD_BYTES:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    yield shard


def _scratch(number: int) -> str:
    return f".partial/shard-{number:05}.safetensors"


def _shard_name(number: int, files: int) -> str:
    return "model.safetensors" if files == 1 else f"model-{number + 1:05}-of-{files:05}.safetensors"


def write_config(out: Path, source: DenseSource, quantization: dict[str, Any]) -> None:
    """config.json of the text model, with its ``quantization_config``."""
    qwen = isinstance(source.model_config, Qwen35Config)
    config = text_config(source.config) | {
        "architectures": ["Qwen3_5ForCausalLM" if qwen else "LlamaForCausalLM"],
        "model_type": "qwen3_5_text" if qwen else "llama",
        "dtype": "float16",
        "quantization_config": quantization,
    }
    config.pop("torch_dtype", None)
    write_json(out / "config.json", config)


def write_tokenizer(out: Path, source: DenseSource) -> None:
    """The tokenizer's files and generation_config.json, copied; for a GGUF file, made from its metadata."""
    if source.gguf_metadata:
        if source.gguf_metadata.get("tokenizer.ggml.model") == MODEL:
            _write_gguf_tokenizer(out, source)
        return
    for name in COPIED:
        if (source.path / name).is_file():
            shutil.copyfile(source.path / name, out / name)


def _write_gguf_tokenizer(out: Path, source: DenseSource) -> None:
    parts = read_gguf(source.gguf_metadata)
    parts.core.save(str(out / "tokenizer.json"))
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **parts.special_strings}
    if parts.add_bos is not None:
        settings["add_bos_token"] = parts.add_bos
    if "default" in parts.templates:
        settings["chat_template"] = parts.templates["default"]
    write_json(out / "tokenizer_config.json", settings | {"clean_up_tokenization_spaces": False})
    if parts.eos_ids:
        write_json(out / "generation_config.json", {"eos_token_id": list(parts.eos_ids)})


def write_json(path: Path, value: dict[str, Any]) -> None:
    """One JSON object, whole or not at all."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(scratch, path)
