"""What the demo reports at its end."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from labkit.bench.memory import peak_memory_bytes
from labkit.bench.results import dtype_name
from labkit.engine.llm import LLM
from labkit.engine.outputs import RequestOutput
from labkit.model.cache import page_bytes

ROWS = {
    "model": "model",
    "dtype": "activations",
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
    "ttft_seconds": "time to first token (TTFT)",
    "prefill_tok_s": "prefill",
    "decode_tok_s": "decode",
    "kv_pages_used": "KV pages used (64 tokens each)",
    "peak_memory_bytes": "peak memory of the process",
}
UNITS = {"ttft_seconds": ("s", 1), "prefill_tok_s": ("tok/s", 1), "decode_tok_s": ("tok/s", 1)}


def demo_figures(llm: LLM, output: RequestOutput) -> dict[str, Any]:
    """The figures of one answer, measured in this process."""
    metrics = output.completions[0].metrics
    engine = llm.engine
    return {
        "model": str(engine.config.model),
        "dtype": dtype_name(engine.config.torch_dtype),
        "prompt_tokens": len(output.prompt_ids),
        "output_tokens": len(output.token_ids),
        "ttft_seconds": metrics.ttft,
        "prefill_tok_s": len(output.prompt_ids) / metrics.ttft if metrics.ttft else None,
        "decode_tok_s": 1 / metrics.tpot if metrics.tpot else None,
        "kv_pages_used": engine.peak_pages,
        "kv_page_bytes": page_bytes(engine.model_config, engine.config.kv_format),
        "peak_memory_bytes": peak_memory_bytes(),
    }


def demo_table(figures: dict[str, Any]) -> Table:
    """The same as a table, with units."""
    table = Table(title="measured on this machine, just now", title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    for name, label in ROWS.items():
        table.add_row(label, _shown(name, figures))
    return table


def _shown(name: str, figures: dict[str, Any]) -> str:
    value = figures[name]
    if name in UNITS and value is not None:
        unit, digits = UNITS[name]
        return f"{value:.{digits + 1 if unit == 's' else digits}f} {unit}"
    if name == "kv_pages_used":
        return f"{value} ({value * figures['kv_page_bytes'] / 2**20:.1f} MiB)"
    if name == "peak_memory_bytes":
        return f"{value / 1e6:,.0f} MB"
    return "-" if value is None else str(value)
