"""How long a sequence may become and how many KV pages there are, where the user leaves it to us."""

from __future__ import annotations

import psutil

from labkit.engine.config import EngineConfig
from labkit.errors import ConfigError
from labkit.model.cache import page_bytes, state_bytes_per_slot
from labkit.model.config import ModelConfig
from labkit.ops.layout import PAGE_SIZE

DEFAULT_MAX_SEQ_LEN = 8192


def sequence_limit(config: EngineConfig, model: ModelConfig) -> int:
    """Tokens of prompt and output together. Raises ConfigError if more are asked for than the model was made for."""
    limit = model.max_position_embeddings
    if config.max_seq_len is not None and config.max_seq_len > limit:
        raise ConfigError(
            f"max_seq_len is {config.max_seq_len}, but the model was made for {limit} positions.",
            cure=f"Use at most {limit}.",
        )
    return config.max_seq_len or min(limit, DEFAULT_MAX_SEQ_LEN)


def default_pages(config: EngineConfig, model: ModelConfig, max_seq_len: int) -> int:
    """Pages for a full batch of full sequences, within a quarter of the memory that is free now."""
    wanted = config.decode_batch_size * -(-max_seq_len // PAGE_SIZE)
    states = config.decode_batch_size * state_bytes_per_slot(model, config.torch_dtype)
    room = psutil.virtual_memory().available // 4 - states
    pages = min(wanted, max(room, 0) // page_bytes(model, config.torch_kv_dtype))
    if pages < 1:
        raise ConfigError(
            "The free memory does not hold one KV page beside the sequence states.",
            cure="Lower decode_batch_size, or free some memory.",
        )
    return pages
