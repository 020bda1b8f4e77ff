"""How long a sequence may become and how many KV pages there are, where the user leaves it to us."""

from __future__ import annotations

import psutil
import torch

from labkit.engine.config import EngineConfig
from labkit.errors import ConfigError
from labkit.model.cache import page_bytes, state_bytes_per_slot
from labkit.model.config import ModelConfig, Qwen35Config
from labkit.ops.gdn_prefill import WORKSPACE_BYTES
from labkit.ops.layout import PAGE_SIZE

DEFAULT_MAX_SEQ_LEN = 8192
CPU_SHARE = 0.25  # of the free memory that pages and states may take: other programs want some too
GPU_SHARE = 0.9  # what is left is for fragmentation and the library's workspaces
FP32 = 4
ROWS_ALIVE = 6  # widest rows of activations, in fp32, that a layer keeps at once (an estimate)


def sequence_limit(config: EngineConfig, model: ModelConfig) -> int:
    """Tokens of prompt and output together. Raises ConfigError if more are asked for than the model was made for."""
    limit = model.max_position_embeddings
    if config.max_seq_len is not None and config.max_seq_len > limit:
        raise ConfigError(
            f"max_seq_len is {config.max_seq_len}, but the model was made for {limit} positions.",
            cure=f"Use at most {limit}.",
        )
    return config.max_seq_len or min(limit, DEFAULT_MAX_SEQ_LEN)


def check_sparse(config: EngineConfig, max_seq_len: int) -> None:
    """Raises ConfigError for sparse prefill in an engine whose sequences never reach the context where it begins."""
    if config.sparse is not None and max_seq_len <= config.sparse.threshold:
        raise ConfigError(
            f"Sparse prefill begins at {config.sparse.threshold} tokens, and sequences hold {max_seq_len} at most.",
            cure="Raise max_seq_len (--max-seq-len) if the model allows more, or lower sparse_threshold.",
        )


def number_of_pages(config: EngineConfig, model: ModelConfig, max_seq_len: int) -> int:
    """Pages of the KV pool: as configured, or for a full batch of full sequences as far as the memory goes.

    That is a quarter of the free memory of a CPU. On a GPU, whose weights are there already, it is nine tenths of the
    free memory less an estimate of what a step's activations take.
    Raises ConfigError if the memory does not hold the pages beside the sequence states.
    """
    wanted = config.num_pages or config.decode_batch_size * -(-max_seq_len // PAGE_SIZE)
    states = config.decode_batch_size * state_bytes_per_slot(model, config.torch_dtype)
    size, (free, share) = page_bytes(model, config.kv_format), _memory(config, model)
    if size and not config.num_pages:
        wanted = min(wanted, max(share - states, 0) // size)
    if wanted < 1 or states + wanted * size > free:
        raise ConfigError(
            f"{max(wanted, 1)} KV pages and the states of {config.decode_batch_size} sequences take "
            f"{(states + max(wanted, 1) * size) / 2**30:.1f} GiB; {free / 2**30:.1f} GiB are free.",
            cure="Lower num_pages or decode_batch_size, or free some memory.",
        )
    return wanted


def activation_bytes(config: EngineConfig, model: ModelConfig) -> int:
    """An estimate of the most that a step takes beside weights and caches: its widest rows, logits, and workspaces."""
    widest = max(model.hidden_size, 2 * model.intermediate_size, 2 * model.num_attention_heads * model.head_dim)
    logits = config.decode_batch_size * model.vocab_size
    workspace = WORKSPACE_BYTES if isinstance(model, Qwen35Config) else 0
    return FP32 * (config.prefill_tokens * ROWS_ALIVE * widest + 2 * logits) + workspace


def _memory(config: EngineConfig, model: ModelConfig) -> tuple[int, int]:
    """Free bytes where the caches will lie, and how many of them pages and states take unless more are asked for."""
    device = config.placement.device
    if device.type == "cpu":
        free = psutil.virtual_memory().available
        return free, int(free * CPU_SHARE)
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch holds it for its tensors
    return free, max(int(free * GPU_SHARE) - activation_bytes(config, model), 0)
