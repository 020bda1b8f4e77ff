"""The speed limit of decoding: every step reads all weights, and every sequence its keys, values and state.

    tokens/s <= batch * bandwidth / (weight bytes + batch * (context * KV bytes per token + state bytes))

Arithmetic, activations and writes are left out, so it is a limit and not a forecast. A share above 1 is possible only
where weights stay in the cache between steps, as those of small models do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from labkit.engine.llm import LLM
from labkit.model.cache import kv_bytes_per_token, state_bytes_per_slot

BUFFER_BYTES = 256 << 20  # several times the last-level cache of common CPUs and GPUs
REPEATS = 5


@dataclass(frozen=True)
class Ceiling:
    """What one decode step of ``batch`` sequences has to read (bytes), and how fast the machine reads (bytes/s)."""

    batch: int
    weight_bytes: int
    cache_bytes: int
    bandwidth: float

    @property
    def tokens_per_s(self) -> float:
        """Upper limit of the decode rate, summed over the batch."""
        return self.batch * self.bandwidth / (self.weight_bytes + self.cache_bytes)

    def __str__(self) -> str:
        return (
            f"a step reads {self.weight_bytes / 1e6:.1f} MB of weights and {self.cache_bytes / 1e6:.1f} MB of cache; "
            f"at {self.bandwidth / 1e9:.1f} GB/s that is at most {self.tokens_per_s:.1f} tok/s"
        )


def decode_ceiling(llm: LLM, context: int, batch: int, bandwidth: float) -> Ceiling:
    """The ceiling of a loaded model at ``context`` tokens per sequence; ``bandwidth`` as from ``read_bandwidth``."""
    engine = llm.engine
    kv = context * kv_bytes_per_token(engine.model_config, engine.config.kv_format)
    state = state_bytes_per_slot(engine.model_config, engine.config.torch_dtype)
    weights = sum(linear.bytes_read(batch) for linear in engine.runner.model.linears.values())
    return Ceiling(batch, weights, batch * (kv + state), bandwidth)


def read_bandwidth(nbytes: int = BUFFER_BYTES, repeats: int = REPEATS, device: torch.device | str = "cpu") -> float:
    """Bytes per second at which torch sums a buffer that no cache of ``device`` holds.

    The best of ``repeats``, after a warm-up; on a GPU with the start of the kernel and the wait for its end.
    """
    buffer = torch.ones(nbytes // 4, device=device)
    return buffer.nbytes / min([_seconds_to_sum(buffer) for _ in range(repeats + 1)][1:])


def _seconds_to_sum(buffer: torch.Tensor) -> float:
    if buffer.is_cuda:
        torch.cuda.synchronize(buffer.device)
    start = time.perf_counter()
    buffer.sum()
    if buffer.is_cuda:
        torch.cuda.synchronize(buffer.device)
    return time.perf_counter() - start
