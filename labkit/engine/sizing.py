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


def number_of_pages(config: EngineConfig, model: ModelConfig, max_seq_len: int) -> int:
    """Pages of the KV pool: as configured, or for a full batch of full sequences within a quarter of the free memory.

    Raises ConfigError if the memory does not hold them beside the sequence states.
    """
    wanted = config.num_pages or config.decode_batch_size * -(-max_seq_len // PAGE_SIZE)
    states = config.decode_batch_size * state_bytes_per_slot(model, config.torch_dtype)
    size, free = page_bytes(model, config.kv_format), psutil.virtual_memory().available
    if size and not config.num_pages:
        wanted = min(wanted, max(free // 4 - states, 0) // size)
    if wanted < 1 or states + wanted * size > free:
        raise ConfigError(
            f"{max(wanted, 1)} KV pages and the states of {config.decode_batch_size} sequences take "
            f"{(states + max(wanted, 1) * size) / 2**30:.1f} GiB; {free / 2**30:.1f} GiB are free.",
            cure="Lower num_pages or decode_batch_size, or free some memory.",
        )
    return wanted
