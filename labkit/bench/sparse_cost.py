"""What sparse prefill did to the perplexity of a text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from labkit.bench.perplexity import PerplexityResult
from labkit.engine.llm import LLM
from labkit.errors import ConfigError


def sparse_cost(llm: LLM, sparse: PerplexityResult, dense: PerplexityResult) -> dict[str, Any]:
    """For JSON: the settings, the dense perplexity of the same tokens, and the change in percent (positive: worse).

    Raises ConfigError for an engine without sparse prefill.
    """
    settings = llm.engine.config.sparse
    if settings is None:
        raise ConfigError("This engine's prefill is dense.", cure="Make it with sparse_prefill=True.")
    return {
        **{f"sparse_{name}": value for name, value in asdict(settings).items()},
        "dense_perplexity": dense.perplexity,
        "sparse_added_percent": 100 * (sparse.perplexity / dense.perplexity - 1),
    }
