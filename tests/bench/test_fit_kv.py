"""What `labkit fit` counts for a token of KV is what the engine's pages take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.models import llama, qwen35, saved

from labkit import LLM
from labkit.bench.fit import fit
from labkit.bench.fit_report import KV_CACHE_DTYPES
from labkit.errors import ConfigError
from labkit.model.cache import kv_bytes_per_token
from labkit.model.config import parse_config
from labkit.model.named import NAMED_CONFIGS
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.paged_kv import KVPages, PageStore
from labkit.quant.kv import BITS, KVFormat


def stored_bytes(store: PageStore) -> int:
    return store.values.nbytes + (0 if store.params is None else store.params.nbytes)


def bytes_of_pages(llm: LLM) -> float:
    """Bytes of K and V for each token that the pool has room for."""
    pools = [entry for entry in llm.engine.runner.cache if isinstance(entry, KVPages)]
    return sum(stored_bytes(pool.k) + stored_bytes(pool.v) for pool in pools) / (pools[0].num_pages * PAGE_SIZE)


@pytest.mark.parametrize("kv", KV_CACHE_DTYPES)
@pytest.mark.parametrize("head_dim", [16, 64, 96, 128])
def test_bytes_of_a_token(kv: str, head_dim: int, tmp_path: Path, seed: int) -> None:
    path = saved(llama(head_dim=head_dim), tmp_path)
    with LLM(path, executor="torch", dtype="float16", kv_cache_dtype=kv, num_pages=2, max_seq_len=64) as llm:
        taken = bytes_of_pages(llm)
        assert taken == kv_bytes_per_token(llm.engine.model_config, llm.engine.config.kv_format)
    assert fit(str(path), kv_cache_dtype=kv).kv_bytes_per_token == taken


@pytest.mark.parametrize("kv", KV_CACHE_DTYPES)
def test_only_layers_with_attention_have_pages(kv: str, tmp_path: Path, seed: int) -> None:
    path = saved(qwen35(head_dim=64), tmp_path)
    with LLM(path, executor="torch", dtype="float16", kv_cache_dtype=kv, num_pages=2, max_seq_len=64) as llm:
        assert fit(str(path), kv_cache_dtype=kv).kv_bytes_per_token == bytes_of_pages(llm)


@pytest.mark.parametrize("name", ["Qwen3.5-27B", "Qwen3.5-0.8B"])
def test_named_models(name: str) -> None:
    config = parse_config(NAMED_CONFIGS[name])
    for kv in KV_CACHE_DTYPES:
        ours = kv_bytes_per_token(config, KVFormat.named(kv, torch.float16))
        assert fit(name, kv_cache_dtype=kv).kv_bytes_per_token == ours


def test_fit_knows_every_kv_dtype() -> None:
    assert set(KV_CACHE_DTYPES) == BITS.keys() - {"auto"}


def test_heads_that_int4_cannot_hold(tmp_path: Path, seed: int) -> None:
    path = saved(llama(head_dim=12), tmp_path)
    assert fit(str(path), kv_cache_dtype="int8").fits
    with pytest.raises(ConfigError, match="multiple of 8"):
        fit(str(path), kv_cache_dtype="int4")
