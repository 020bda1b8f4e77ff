"""The benchmark panel of chapter 17: Run and Stop, progress, a table and a plotly figure that grow as rows come.

The work happens in a thread, and a thread has no cell: what it printed could land anywhere. So it only sets traits of
widgets, which is safe from any thread; the figure, too, is a trait (the ``outputs`` of an Output widget).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from labkit.bench.results import BenchRow, Spread
from labkit.bench.workload import Workload
from labkit.engine.llm import LLM
from labkit.lab.bench_session import BenchSession, missing

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

HEADINGS = ("context", "batch", "prefill tok/s", "decode tok/s", "of ceiling", "TTFT ms", "TPOT ms", "")


class BenchPanel:
    """Show it in a cell, then press Run; or call ``start`` and ``wait``, which do the same without a browser.

    run_button, stop_button, progress_bar, status, table, chart: its widgets; None without ipywidgets, where the panel
    shows as a text that says what is missing.
    Raises ConfigError for an impossible workload.
    """

    def __init__(
        self,
        llm: LLM,
        context_lengths: Sequence[int] = (128, 1024),
        batch_sizes: Sequence[int] = (1, 8),
        decode_tokens: int = 32,
        repeats: int = 3,
    ) -> None:
        self.session = BenchSession(llm, Workload(context_lengths, batch_sizes, decode_tokens, repeats), self._update)
        self.run_button: Any = None
        self.stop_button: Any = None
        self.progress_bar: Any = None
        self.status: Any = None
        self.table: Any = None
        self.chart: Any = None
        self.box: Any = None
        try:
            import ipywidgets
        except ImportError:
            return
        self._build(ipywidgets)

    @property
    def rows(self) -> list[BenchRow]:
        """All rows measured so far."""
        return self.session.rows

    @property
    def frame(self) -> pd.DataFrame:
        """The rows as a data frame. Raises MissingExtraError without pandas."""
        return self.session.frame

    @property
    def figure(self) -> go.Figure:
        """The decode rates as a plotly figure. Raises MissingExtraError without plotly."""
        return self.session.figure

    def start(self) -> None:
        """What the Run button does; nothing while a run is under way."""
        self.session.start()

    def stop(self) -> None:
        """What the Stop button does: end before the next step. Finished rows stay."""
        self.session.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the run to end; False if ``timeout`` seconds were not enough. Raises what the run has raised."""
        return self.session.wait(timeout)

    def __repr__(self) -> str:
        hint = "" if self.box else f"{missing('ipywidgets')}\nWithout it: panel.start(), panel.wait(), panel.frame.\n"
        return f"{hint}{self.session.status}\n{text_table(self.rows)}"

    def _repr_mimebundle_(self, **settings: Any) -> Any:
        return self.box._repr_mimebundle_(**settings) if self.box else {"text/plain": repr(self)}

    def _build(self, ipywidgets: Any) -> None:
        self.run_button = _button(ipywidgets, "Run", "play", self.start)
        self.stop_button = _button(ipywidgets, "Stop", "stop", self.stop)
        self.progress_bar = ipywidgets.IntProgress(description="runs", min=0)
        self.status = ipywidgets.HTML()
        self.table, self.chart = ipywidgets.HTML(), ipywidgets.Output()
        buttons = ipywidgets.HBox([self.run_button, self.stop_button, self.progress_bar])
        self.box = ipywidgets.VBox([buttons, self.status, self.table, self.chart])
        self._shown_rows = -1
        self._update()

    def _update(self) -> None:
        if self.box is None:
            return
        session = self.session
        self.run_button.disabled, self.stop_button.disabled = session.running, not session.running
        self.progress_bar.max, self.progress_bar.value = session.total, session.done
        self.status.value = f'<span role="status">{escape(session.status)}</span>'
        if len(session.rows) != self._shown_rows:
            self._shown_rows = len(session.rows)
            self.table.value = html_table(session.rows)
            self.chart.outputs = (_display_data(session),) if session.rows else ()


def text_table(rows: Sequence[BenchRow]) -> str:
    """The rows in plain text, one a line."""
    widths = [len(heading) for heading in HEADINGS]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in (HEADINGS, *map(_cells, rows)))


def html_table(rows: Sequence[BenchRow]) -> str:
    """The rows as an HTML table whose caption says where the figures come from; "" without rows."""
    if not rows:
        return ""
    origin = rows[-1].origin
    caption = f"{origin.origin} on {origin.device}, {origin.threads} threads, torch {origin.torch}, {origin.date}"
    head = "".join(f'<th scope="col" style="padding:0 .7em">{name}</th>' for name in HEADINGS)
    body = "".join(f"<tr>{_html_cells(row)}</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>"


def _html_cells(row: BenchRow) -> str:
    return "".join(f'<td style="text-align:right;padding:0 .7em">{escape(cell)}</td>' for cell in _cells(row))


def _cells(row: BenchRow) -> tuple[str, ...]:
    share = "-" if row.ceiling_share is None else f"{row.ceiling_share:.0%}"
    return (
        str(row.context),
        str(row.batch),
        _shown(row.prefill_tokens_per_s),
        _shown(row.decode_tokens_per_s),
        share,
        _shown(row.ttft_s, 1000),
        _shown(row.tpot_s, 1000),
        row.error or "",
    )


def _shown(spread: Spread | None, factor: float = 1) -> str:
    return "-" if spread is None else f"{spread.median * factor:.1f}"


def _button(ipywidgets: Any, text: str, icon: str, action: Callable[[], None]) -> Any:
    button = ipywidgets.Button(description=text, icon=icon)
    button.on_click(lambda _: action())
    return button


def _display_data(session: BenchSession) -> dict[str, Any]:
    """The figure as notebook output: plain plotly data (a few KB), and the table for front ends without plotly."""
    data: dict[str, Any] = {"text/plain": text_table(session.rows)}
    try:
        data["application/vnd.plotly.v1+json"] = json.loads(session.figure.to_json())
    except ImportError as error:  # the table stands in for the picture, and says why
        data["text/plain"] += f"\n{error}"
    return {"output_type": "display_data", "data": data, "metadata": {}}
