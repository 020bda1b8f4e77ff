"""Writes docs/sparse.md: what sparse prefill keeps, finds and gets wrong, from docs/measured/.

labkit bench sparse --time --json > docs/measured/sparse-synthetic.json             # minutes
labkit bench sparse -m smollm2 --time --json > docs/measured/sparse-smollm2.json    # minutes
python tools/sparse_page.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from labkit.bench.sparse_text import SPARSE_FROM

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "sparse.md"
MEASURED = ROOT / "docs" / "measured"
# What had been asked for: needles found and pages kept, at this length, in the same row.
WANTED_AT, WANTED_RECALL, WANTED_KEPT = 65536, 0.99, 0.25
WIDTH = 116  # of a line of text
PARTS = ("choice", "kept", "dense")  # of the seconds


def page() -> str:
    """The whole page as Markdown."""
    files = sorted(MEASURED.glob("sparse-*.json"))
    return "\n".join([*_head(), *measured([json.loads(file.read_text(encoding="utf-8")) for file in files])]) + "\n"


def _head() -> list[str]:
    return [
        "# Sparse prefill",
        "",
        *_paragraph(
            "Which pages of 64 tokens `--sparse-prefill` keeps, which needles it finds, and how far its output is",
            "from dense attention's. A tile is 64 rows; how it chooses is said in",
            "[sparse_prefill.py](../labkit/ops/sparse_prefill.py). Written by `python tools/sparse_page.py` from",
            "[docs/measured](measured); a test keeps it current.",
        ),
        *_item("*kept*: of the pages that the tiles may see, all heads together."),
        *_item(
            "*error*: per row and head, the 2-norm of the difference from dense attention over that of dense",
            "attention; the mean over rows and heads, and the worst of them. Look at the worst before you trust it",
            "with a task.",
        ),
        *_item(
            "*choice*, *attention*, *dense*: seconds of all tiles together for choosing pages, for attention to the",
            "chosen ones, and for dense attention. They are of torch on the CPU cores named below, which other",
            "programs used at the same time: upper bounds, for the order of magnitude, and rows do not compare with",
            "each other. The choice samples the keys of the context for every tile again; the engine does so once for",
            "a chunk of up to 64 tiles. On a GPU: not yet measured.",
        ),
        "",
    ]


def measured(benches: Sequence[dict[str, Any]]) -> list[str]:
    """The tables of each file that ``labkit bench sparse --json`` wrote: made-up keys first, then texts."""
    made_up = [bench for bench in benches if "model" not in bench]
    texts = [bench for bench in benches if "model" in bench]
    lines = [line for bench in made_up for line in _made_up(bench)] or ["## Made-up keys", "", "Not yet measured.", ""]
    lines += [line for bench in texts for line in _text(bench)] or ["## A real text", "", "Not yet measured.", ""]
    return lines[:-1]


# Made-up keys


def _made_up(bench: dict[str, Any]) -> list[str]:
    rows = bench["rows"]
    head = ("tokens", "seed", "kept", "needles", "found", "of rows", "of keys", "error", "worst", "cost")
    return [
        "## Made-up keys with needles",
        "",
        *_paragraph(
            f"`labkit bench sparse`: {rows[0]['tiles']} tiles spread over the context, six heads on one KV head, D",
            f"256. {_settings(bench)} The threshold is set aside. A needle is a key to which a row really pays 0.3 of",
            "its attention or more; *of rows*: needles that a row was turned to; *of keys*: those whose key was",
            "turned to a row like any other. Five are planted for each tile and head, at depths from 2 to 97 % of its",
            "context; those that others leave less than 0.3 do not count. *cost* is counted, not measured:",
            "multiplications and additions of the choice and of attention, as a share of dense attention's.",
            _origin(bench),
        ),
        *_table((*head, *_headings(rows)), [_made_up_row(row) for row in rows]),
        "",
        *verdict(rows),
        "",
    ]


def _made_up_row(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['context']:,}",
        str(row["seed"]),
        f"{row['kept_share']:.1%}",
        str(row["needles"]),
        *(_share(row[name]) for name in ("recall", "recall_row", "recall_key")),
        f"{row['error_mean']:.3f}",
        f"{row['error_worst']:.2f}",
        f"{row['cost']:.0%}",
        *_seconds(row),
    ]


def verdict(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What had been asked for and what came of it; and what was missed, by length and kind."""
    asked = [row for row in rows if row["context"] == WANTED_AT]
    short = [row for row in asked if (row["recall"] or 0) < WANTED_RECALL or row["kept_share"] > WANTED_KEPT]
    missing = ", ".join(f"seed {row['seed']}" for row in short) or "none"
    reached = f"{missing} (of {len(asked)})" if asked else "not measured"
    lines = _paragraph(
        f"At {WANTED_AT:,} tokens {WANTED_RECALL:.0%} of the needles were to be found and at most {WANTED_KEPT:.0%} of",
        f"the pages kept, in the same row. Short of it: {reached}. Needles missed:",
    )
    for context in dict.fromkeys(row["context"] for row in rows):
        here = [row for row in rows if row["context"] == context]
        needles = sum(row["needles"] for row in here)
        lines.append(f"- {context:,} tokens: {sum(map(missed, here))} of {needles:,}")
    return lines


def missed(row: dict[str, Any]) -> int:
    """How many needles of a row were not found."""
    return round(row["needles"] * (1 - (1 if row["recall"] is None else row["recall"])))


# A text


def _text(bench: dict[str, Any]) -> list[str]:
    rows = bench["rows"]
    head = ("tokens", "kept", "needles", "found", "pages", "found", "error", "worst")
    return [
        f"## A real text through {bench['model']}",
        "",
        *_paragraph(
            f"`labkit bench sparse -m {bench['model']}`, the first tokens of `{bench['text']}` ([public",
            "domain](../labkit/assets/text/SOURCE.md)), fp32. While the model reads it densely, tiles of each layer",
            f"with attention ({rows[0]['tiles']} in each of {rows[0]['layers']}, spread over the last three quarters)",
            f"also attend sparsely to the same keys. {_settings(bench)} A needle is a page to which a row really pays",
            "0.3 of its attention or more, to one key or to several, and that is not kept in any case, as sink,",
            "recent or own. *pages*: rows of a tile and head that need the same page counted once.",
            _origin(bench),
        ),
        *_table((*head, *_headings(rows)), [_text_row(row) for row in rows]),
        "",
        *(line for row in rows for line in _whole_text(row)),
        "",
    ]


def _text_row(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['context']:,}",
        f"{row['kept_share']:.1%}",
        f"{row['needles']:,}",
        _share(row["recall"]),
        f"{row['needle_pages']:,}",
        _share(row["recall_pages"]),
        f"{row['error_mean']:.3f}",
        f"{row['error_worst']:.2f}",
        *_seconds(row),
    ]


def _whole_text(row: dict[str, Any]) -> list[str]:
    kept, errors, tokens = row["kept_by_layer"], row["error_by_layer"], f"{row['context']:,} tokens"
    return [
        *_item(
            f"{tokens}, layer by layer: {min(kept):.0%} to {max(kept):.0%} of the pages kept, a mean error of",
            f"{min(errors):.3f} to {max(errors):.3f}.",
        ),
        *_item(
            f"{tokens}, every layer sparse from {row['context'] // SPARSE_FROM:,} tokens of context on: perplexity",
            f"{row['sparse_perplexity']:.3f}, dense {row['dense_perplexity']:.3f} ({row['added_percent']:+.2f} %).",
        ),
    ]


# Both


def _settings(bench: dict[str, Any]) -> str:
    given = bench["settings"]
    return f"Mass {given['mass']}, {given['sink']} sink and {given['recent']} recent pages, needle {given['needle']}."


def _origin(bench: dict[str, Any]) -> str:
    threads = f"{bench['threads']} thread" + ("s" if bench["threads"] != 1 else "")
    versions = f"torch {bench['torch']}, labkit {bench['labkit']}"
    return f"Measured {bench['date'][:10]}: {bench['device']}, {threads}, {versions}."


def _headings(rows: Sequence[dict[str, Any]]) -> list[str]:
    return ["choice", "attention", "dense"] if rows[0]["seconds"] else []


def _seconds(row: dict[str, Any]) -> list[str]:
    return [f"{row['seconds'][part]:.1f}" for part in PARTS] if row["seconds"] else []


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _paragraph(*parts: str) -> list[str]:
    return [*wrap(" ".join(parts), WIDTH, break_on_hyphens=False, break_long_words=False), ""]


def _item(*parts: str) -> list[str]:
    first, *others = _paragraph(*parts)[:-1]
    return [f"- {first}", *(f"  {line}" for line in others)]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [_row(headings), "|" + "--:|" * len(headings)]
    return [*lines, *(_row(row) for row in rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
