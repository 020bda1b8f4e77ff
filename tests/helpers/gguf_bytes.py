"""A Llama GGUF written byte by byte, so that tests can break any part of it."""

from __future__ import annotations

import struct
from pathlib import Path


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


def write_raw_gguf(
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
