"""The keys and values that chapters show are those that the model's attention reads."""

from __future__ import annotations

import pytest
import torch

from labkit import LLM
from labkit.bench.texts import DEFAULT_TEXT
from labkit.errors import ConfigError
from labkit.lab.stored_kv import stored_kv
from labkit.ops.paged_kv import KVPages


def test_they_are_those_of_the_engine() -> None:
    """What an engine leaves in its pages after the same tokens: some page has the first 64, another the rest."""
    found = stored_kv("labkit-tiny", 70)
    assert sorted(found) == [3, 7]
    with LLM("labkit-tiny", executor="torch", dtype="float32") as llm:
        ids = llm.tokenizer.encode(DEFAULT_TEXT.read_text(encoding="utf-8"), special=False)[:70]
        llm.logits(ids)
        for layer, parts in found.items():
            pages = llm.engine.runner.cache[layer]
            assert isinstance(pages, KVPages)
            for store, part in zip((pages.k, pages.v), parts, strict=True):
                assert part.shape == (2, 70, 256)
                for held in (part[:, :64], part[:, 64:]):
                    assert any(torch.allclose(page[:, : held.shape[1]], held, atol=1e-5) for page in store.values)


@pytest.mark.parametrize("tokens", [0, 10**6])
def test_tokens_that_are_not_there(tokens: int) -> None:
    with pytest.raises(ConfigError, match="tokens of a text"):
        stored_kv("labkit-tiny", tokens)
