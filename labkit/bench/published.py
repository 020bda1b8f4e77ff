"""Figures that other systems published for the V100, each with its source; and what labkit has to set beside them.

The table lies in ``published.json``. Its figures are their authors' own, copied as stated. labkit's V100 column reads
"not yet measured" until somebody runs it on a V100: no figure there is ever modelled or carried over from another GPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

from labkit.errors import AssetError, ConfigError

NOT_MEASURED = "not yet measured"


@dataclass(frozen=True)
class PublishedFigure:
    """One published row. Rates in tokens per second, None where not published.

    decode_tokens_per_s is the sum over the batch; batch is None where the source does not say its size. context is the
    source's own label ("64K", "short"). speculative: drafted tokens are in the rate, so it does not compare with plain
    decoding. found_in_source: False if the figure is only quoted and its source text was not found.
    """

    system: str
    model: str
    hardware: str
    gpus: int | None
    gpu_memory_gib: int | None
    weights: str
    kv: str | None
    context: str
    batch: int | None
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    speculative: bool
    found_in_source: bool
    source: str
    note: str


@cache
def load_published() -> tuple[PublishedFigure, ...]:
    """All published figures, in the order of the file. Raises AssetError if the file is damaged."""
    text = (files("labkit.bench") / "published.json").read_text(encoding="utf-8")
    try:
        return tuple(_figure(row) for row in json.loads(text)["figures"])
    except (KeyError, TypeError, ValueError) as error:
        raise AssetError(f"bench/published.json is damaged ({error}).", cure="Install labkit again.") from error


def _figure(row: Mapping[str, Any]) -> PublishedFigure:
    figure = PublishedFigure(**row)
    if not figure.source or (figure.prefill_tokens_per_s is None and figure.decode_tokens_per_s is None):
        raise ValueError(f"a row of {figure.system} has no figure or no source")
    return figure


def select(
    *, context: str | None = None, speculative: bool | None = None, model: str | None = None, batch: int | None = None
) -> list[PublishedFigure]:
    """The figures with these properties; None leaves a property open.

    Raises ConfigError for a context that nobody published.
    """
    figures = load_published()
    if context is not None and context not in {figure.context for figure in figures}:
        known = ", ".join(dict.fromkeys(figure.context for figure in figures))
        raise ConfigError(f"No figure was published at context {context!r}.", cure=f"Use one of: {known}.")
    wanted = {"context": context, "speculative": speculative, "model": model, "batch": batch}
    given = {name: value for name, value in wanted.items() if value is not None}
    return [figure for figure in figures if all(getattr(figure, name) == value for name, value in given.items())]


def table(
    context: str | None = None, *, speculative: bool | None = None, model: str | None = None, batch: int | None = None
) -> list[dict[str, Any]]:
    """The selected figures as rows for a table, labkit's own row last. Columns are the fields of PublishedFigure."""
    columns = [field.name for field in fields(PublishedFigure)]
    chosen = select(context=context, speculative=speculative, model=model, batch=batch)
    rows: list[dict[str, Any]] = [{name: getattr(figure, name) for name in columns} for figure in chosen]
    return [*rows, _labkit_row(columns, context)]


def _labkit_row(columns: list[str], context: str | None) -> dict[str, Any]:
    row = dict.fromkeys(columns)
    said = {"system": "labkit", "hardware": "V100", "context": context, "note": f"{NOT_MEASURED} on a V100"}
    rates = dict.fromkeys(("prefill_tokens_per_s", "decode_tokens_per_s"), NOT_MEASURED)
    return {**row, **said, **rates}
