"""The benchmark panel without a browser: its buttons, its thread, what it shows, and what it says without widgets."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.models import llama, saved

from labkit import LLM
from labkit.bench.ceiling import read_bandwidth
from labkit.bench.timing import time_labkit
from labkit.errors import ConfigError, EngineClosedError, MissingExtraError
from labkit.lab.bench_panel import BenchPanel, html_table, text_table


@pytest.fixture(autouse=True)
def _small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "labkit.bench.run.read_bandwidth", lambda device: read_bandwidth(1 << 16, repeats=1, device=device)
    )


@pytest.fixture
def llm(seed: int, tmp_path: Path) -> Iterator[LLM]:
    with LLM(saved(llama(), tmp_path), dtype="float32", decode_batch_size=4, max_seq_len=128) as engine:
        yield engine


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Each timed run waits for a permit, so that a test can look at the panel in between."""
    permits = threading.Semaphore(0)

    def gated(*arguments: Any) -> Any:
        assert permits.acquire(timeout=60)
        return time_labkit(*arguments)

    monkeypatch.setattr("labkit.bench.subject.time_labkit", gated)
    return permits


def test_run_appends_rows_to_frame_table_and_figure(llm: LLM) -> None:
    panel = BenchPanel(llm, [8, 30, 400], [1, 4], decode_tokens=2, repeats=2)
    assert panel.table.value == "" and panel.chart.outputs == ()
    panel.run_button.click()
    assert panel.wait(120)
    assert list(panel.frame["batch"]) == [1, 4] * 3
    assert list(panel.frame["error"].isna()) == [True] * 4 + [False] * 2
    assert panel.table.value.count("<tr>") == 7 and "measured on" in panel.table.value
    assert "max_seq_len is 128" in panel.table.value
    assert (panel.progress_bar.value, panel.progress_bar.max) == (18, 18)
    assert "Done." in panel.status.value
    traces = panel.figure.to_dict()["data"]
    assert [(trace["name"], list(trace["x"])) for trace in traces] == [("context 8", [1, 4]), ("context 30", [1, 4])]
    assert [trace["y"][0] for trace in traces] == [row.decode_tokens_per_s.median for row in panel.rows[:4:2]]
    panel.run_button.click()
    assert panel.wait(120) and len(panel.rows) == 12


def test_figure_is_a_trait_with_a_text_beside_it(llm: LLM) -> None:
    """Not printed and not drawn in the thread: the state of the widget holds all of it, however late it is shown."""
    panel = BenchPanel(llm, [8], [1, 2], decode_tokens=1, repeats=1)
    panel.start()
    panel.wait(120)
    [output] = panel.chart.outputs
    assert output["output_type"] == "display_data"
    assert output["data"]["application/vnd.plotly.v1+json"]["data"][0]["x"] == [1, 2]
    assert output["data"]["text/plain"].splitlines()[1:] == text_table(panel.rows).splitlines()[1:]
    assert len(json.dumps(output)) < 10_000
    assert panel.chart.get_state("outputs")["outputs"] == panel.chart.outputs


def test_nothing_is_printed(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    first, second = (BenchPanel(llm, [8], [1], decode_tokens=1, repeats=1) for _ in range(2))
    capfd.readouterr()
    for panel in (first, second):
        panel.start()
        panel.wait(120)
        assert len(panel.rows) == 1
    assert capfd.readouterr() == ("", "")


def test_buttons_follow_the_state_and_rows_show_while_it_runs(llm: LLM, gate: threading.Semaphore) -> None:
    panel = BenchPanel(llm, [8], [1, 2], decode_tokens=1, repeats=1)
    assert (panel.run_button.disabled, panel.stop_button.disabled) == (False, True)
    shown = threading.Event()
    panel.table.observe(lambda change: shown.set(), "value")
    panel.run_button.click()
    gate.release(2)  # warm-up and run of the first cell; the second cell waits
    assert shown.wait(60) and panel.table.value.count("<tr>") == 2
    assert (panel.run_button.disabled, panel.stop_button.disabled) == (True, False)
    assert not panel.wait(0.01)
    panel.run_button.click()  # does not start a second thread
    gate.release(2)
    assert panel.wait(120) and len(panel.rows) == 2
    assert (panel.run_button.disabled, panel.stop_button.disabled) == (False, True)


def test_stop_ends_the_run_and_keeps_its_rows(llm: LLM, gate: threading.Semaphore) -> None:
    panel = BenchPanel(llm, [8], [1, 2], decode_tokens=1, repeats=1)
    shown = threading.Event()
    panel.table.observe(lambda change: shown.set(), "value")
    panel.run_button.click()
    gate.release(2)
    assert shown.wait(60)
    panel.stop_button.click()
    gate.release(2)
    assert panel.wait(120)
    assert [row.batch for row in panel.rows] == [1] and "Stopped." in panel.status.value
    assert not llm.engine.has_work
    gate.release(99)
    panel.run_button.click()  # a stop does not outlive its run
    assert panel.wait(120) and [row.batch for row in panel.rows] == [1, 1, 2]


def test_a_failure_shows_in_the_status_and_reaches_who_waits(llm: LLM) -> None:
    panel = BenchPanel(llm, [8], [1], decode_tokens=1, repeats=1)
    llm.close()
    panel.run_button.click()
    with pytest.raises(EngineClosedError):
        panel.wait(120)
    assert "was closed" in panel.status.value and not panel.run_button.disabled


def test_an_unexpected_failure_is_named_too(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise ZeroDivisionError("by <nothing>")

    monkeypatch.setattr("labkit.bench.subject.time_labkit", broken)
    panel = BenchPanel(llm, [8], [1], decode_tokens=1, repeats=1)
    panel.start()
    with pytest.raises(ZeroDivisionError):
        panel.wait(120)
    assert "ZeroDivisionError: by &lt;nothing&gt;" in panel.status.value


def test_an_interrupted_wait_stops_the_run(
    llm: LLM, gate: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = BenchPanel(llm, [8], [1, 2], decode_tokens=1, repeats=1)
    panel.start()
    thread = panel.session._thread
    assert thread is not None
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(thread, "join", lambda timeout: (_ for _ in ()).throw(KeyboardInterrupt))
        panel.wait()
    gate.release(9)
    assert panel.wait(120) and panel.rows == []


def test_without_ipywidgets_it_is_a_text_that_still_measures(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    panel = BenchPanel(llm, [8], [1], decode_tokens=1, repeats=1)
    assert panel.run_button is None
    text = panel._repr_mimebundle_()["text/plain"]
    assert "ipywidgets" in text and "pip install" in text and "panel.start()" in text
    panel.start()
    assert panel.wait(120) and len(panel.frame) == 1
    assert text_table(panel.rows) in repr(panel)


def test_without_plotly_the_table_says_so(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = BenchPanel(llm, [8], [1], decode_tokens=1, repeats=1)
    for module in [name for name in sys.modules if name.split(".")[0] == "plotly"] + ["plotly", "plotly.graph_objects"]:
        monkeypatch.setitem(sys.modules, module, None)
    panel.start()
    assert panel.wait(120)
    [output] = panel.chart.outputs
    assert list(output["data"]) == ["text/plain"] and "plotly" in output["data"]["text/plain"]
    with pytest.raises(MissingExtraError, match="pip install"):
        _ = panel.figure


def test_without_pandas_the_frame_names_its_cure(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pandas"):
        _ = BenchPanel(llm, [8], [1]).frame


def test_impossible_workload_is_refused_at_once(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="batch_sizes"):
        BenchPanel(llm, [8], [])


def test_with_widgets_the_cell_gets_the_widget_view(llm: LLM) -> None:
    bundle = BenchPanel(llm, [8], [1])._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in str(bundle)
    assert html_table([]) == ""
