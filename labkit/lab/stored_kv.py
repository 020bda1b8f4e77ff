"""The keys and values of a real model, as its attention layers store them."""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.bench.texts import DEFAULT_TEXT
from labkit.engine.llm import LLM
from labkit.errors import ConfigError
from labkit.model.cache import make_cache
from labkit.model.forward_batch import ForwardBatch, SequenceChunk
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.paged_kv import KVPages
from labkit.quant.kv import KVFormat


@torch.inference_mode()
def stored_kv(model: str, tokens: int = 256) -> dict[int, tuple[Tensor, Tensor]]:
    """Layer -> keys after RoPE and values, fp32 [kv_heads, tokens, D], of the beginning of labkit's evaluation text.

    Layers without pages (Gated DeltaNet) are left out. Raises what ``LLM`` raises, and ConfigError for fewer tokens
    than one or more than the text has.
    """
    with LLM(model, executor="torch", dtype="float32") as llm:
        ids = llm.tokenizer.encode(DEFAULT_TEXT.read_text(encoding="utf-8"), special=False)
        if not 1 <= tokens <= len(ids):
            raise ConfigError(f"{tokens} tokens of a text of {len(ids)}.", cure="Ask for some that are there.")
        built, config = llm.engine.runner.model, llm.engine.model_config
        pages = list(range(1, 1 + -(-tokens // PAGE_SIZE)))
        cache = make_cache(config, len(pages), 1, torch.float32, KVFormat(torch.float32))
        built(ForwardBatch([SequenceChunk(ids[:tokens], 0, pages, 0)]), cache)
    table = torch.tensor(pages)
    stored = {layer: part.gather(table) for layer, part in enumerate(cache) if isinstance(part, KVPages)}
    return {layer: (k[:, :tokens].clone(), v[:, :tokens].clone()) for layer, (k, v) in stored.items()}
