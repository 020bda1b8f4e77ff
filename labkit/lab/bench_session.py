"""A benchmark that runs in the background: rows as they come, stop at any time, no widget needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from labkit.bench.results import BenchRow
from labkit.bench.run import iter_bench
from labkit.bench.workload import Workload
from labkit.engine.llm import LLM
from labkit.errors import LabkitError, MissingExtraError

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

MARKERS = ("circle", "square", "diamond", "cross", "triangle-up", "x")


class BenchSession:
    """Runs a workload on a loaded model in a thread of its own; that thread is the engine's only user meanwhile.

    rows: all rows so far, over several runs. status: one line on what happens. done, total: of the runs under way.
    on_change is called after every change, from the thread that caused it; there it must not print.
    """

    def __init__(self, llm: LLM, workload: Workload, on_change: Callable[[], None] | None = None) -> None:
        self.llm, self.workload, self.on_change = llm, workload, on_change
        self.rows: list[BenchRow] = []
        self.status, self.done, self.total = "Ready.", 0, 1
        self.running = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def start(self) -> None:
        """Begin a run; does nothing while one is under way."""
        if self.running:
            return
        self.running, self._failure = True, None
        self._stop.clear()
        self._thread = threading.Thread(target=self._work, name="labkit-bench", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the run to end before its next step; finished rows stay."""
        self._stop.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run is over; False if ``timeout`` seconds were not enough. An interrupt stops the run.

        Raises what the run has raised, since a thread has no cell in which that would show.
        """
        try:
            if self._thread is not None:
                self._thread.join(timeout)
        except KeyboardInterrupt:
            self.stop()
            raise
        if self._failure is not None:
            raise self._failure
        return not self.running

    @property
    def frame(self) -> pd.DataFrame:
        """The rows with all their columns. Raises MissingExtraError without pandas."""
        try:
            import pandas as pd
        except ImportError as error:
            raise missing("pandas") from error
        return pd.DataFrame([row.to_dict() for row in self.rows])

    @property
    def figure(self) -> go.Figure:
        """Decode rate over the batch size, a line for each context, bars from the slowest to the fastest repeat.

        Raises MissingExtraError without plotly.
        """
        try:
            import plotly.graph_objects as go
        except ImportError as error:
            raise missing("plotly") from error
        figure = go.Figure(layout=go.Layout(template=go.layout.Template(), height=320, margin={"t": 30, "b": 45}))
        batches = sorted({row.batch for row in self.rows})
        figure.update_xaxes(title="sequences at once", type="log", tickvals=batches, ticktext=[str(b) for b in batches])
        figure.update_yaxes(title="decode tok/s, all sequences", rangemode="tozero")
        for number, (context, rows) in enumerate(self._measured().items()):
            figure.add_trace(_line(context, rows, MARKERS[number % len(MARKERS)]))
        return figure

    def _measured(self) -> dict[int, list[BenchRow]]:
        by_context: dict[int, list[BenchRow]] = {}
        for row in self.rows:
            if row.decode_tokens_per_s:
                by_context.setdefault(row.context, []).append(row)
        return by_context

    def _work(self) -> None:
        try:
            self._tell(0, 1, "Measuring the memory bandwidth.")
            for row in iter_bench(self.llm, self.workload, self._tell, self._stop.is_set):
                self.rows.append(row)
                self._changed()
            self.status = "Stopped." if self._stop.is_set() else "Done."
        except Exception as error:  # handed on to whoever waits
            self._failure = error
            self.status = str(error) if isinstance(error, LabkitError) else f"{type(error).__name__}: {error}"
        finally:
            self.running = False
            self._changed()

    def _tell(self, done: int, total: int, text: str) -> None:
        self.done, self.total, self.status = done, total, text
        self._changed()

    def _changed(self) -> None:
        if self.on_change:
            self.on_change()


def missing(package: str) -> MissingExtraError:
    """The error for a package of the notebooks extra."""
    return MissingExtraError(
        f"This needs the package {package}.", cure="Run `pip install 'labkit-v100[notebooks]'` and restart the kernel."
    )


def _line(context: int, rows: list[BenchRow], marker: str) -> dict[str, Any]:
    spreads = [row.decode_tokens_per_s for row in rows if row.decode_tokens_per_s]
    above = [spread.high - spread.median for spread in spreads]
    below = [spread.median - spread.low for spread in spreads]
    return {
        "type": "scatter",
        "name": f"context {context}",
        "mode": "markers",
        "marker": {"symbol": marker, "size": 9},
        "x": [row.batch for row in rows],
        "y": [spread.median for spread in spreads],
        "error_y": {"type": "data", "array": above, "arrayminus": below},
    }
