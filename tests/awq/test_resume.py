"""Interrupted and resumed gives the same bytes; what belongs to another run is refused."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from helpers.models import llama, qwen35
from helpers.quantizing import SMALL, files_of, model_on_disk
from safetensors.torch import load_file, save_file

from labkit.awq import folder, partial
from labkit.awq.alone import alone
from labkit.awq.quantize import quantize
from labkit.awq.settings import QuantizeSettings
from labkit.errors import ConfigError


def stop_at(layer: int) -> Any:
    def progress(done: int, total: int, text: str) -> None:
        if done == layer:
            raise KeyboardInterrupt

    return progress


@pytest.fixture
def source(seed: int, tmp_path: Path) -> Path:
    return model_on_disk(qwen35, tmp_path / "source")


def _interrupt(source: Path, out: Path, layer: int = 2, settings: QuantizeSettings = SMALL) -> None:
    with pytest.raises(KeyboardInterrupt):
        quantize(source, out, settings, progress=stop_at(layer))


@pytest.mark.parametrize("method", ["awq", "rtn"])
@pytest.mark.parametrize("layer", [0, 1, 3, 4])
def test_resumed_gives_the_same_bytes(source: Path, tmp_path: Path, layer: int, method: str) -> None:
    settings = QuantizeSettings(**{**SMALL.to_dict(), "method": method})
    whole = files_of(quantize(source, tmp_path / "whole", settings).out)
    _interrupt(source, tmp_path / "out", layer, settings)
    assert len(list((tmp_path / "out" / ".partial").glob("layer-*"))) == layer
    report = quantize(source, tmp_path / "out", settings)
    assert report.resumed == layer and files_of(report.out) == whole


def test_a_damaged_or_unfinished_layer_is_done_again(source: Path, tmp_path: Path) -> None:
    whole = files_of(quantize(source, tmp_path / "whole", SMALL).out)
    _interrupt(source, tmp_path / "out", 3)
    kept = tmp_path / "out" / ".partial"
    middle = kept / "layer-0001.safetensors"
    middle.write_bytes(middle.read_bytes()[:-100])
    (kept / partial.SCRATCH).write_bytes(b"half of a layer")
    report = quantize(source, tmp_path / "out", SMALL)
    assert report.resumed == 2 and files_of(report.out) == whole


def test_interrupted_while_writing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = files_of(quantize(source, tmp_path / "whole", SMALL).out)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for name in ("write_config", "write_tokenizer"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(f"labkit.awq.quantize.{name}", interrupted)
            quantize(source, tmp_path / "out", SMALL)
    assert files_of(quantize(source, tmp_path / "out", SMALL).out) == whole


def test_a_full_disk_leaves_a_run_to_resume(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []

    def save(tensors: object, path: Path, **settings: object) -> None:
        written.append(path)
        if len(written) == 3:
            path.write_bytes(b"some")
            raise OSError(errno.ENOSPC, "No space left on device")
        partial_save(tensors, path, **settings)

    partial_save: Any = partial.save_file
    monkeypatch.setattr(partial, "save_file", save)
    with pytest.raises(OSError, match="No space left"):
        quantize(source, tmp_path / "out", SMALL)
    assert quantize(source, tmp_path / "out", SMALL).resumed == 2


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"format": "compressed-tensors"}, "settings"), ({"windows": 3}, "settings, calibration text"), ({}, "model")],
)
def test_another_run_is_refused_and_the_first_goes_on(
    source: Path, tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    _interrupt(source, tmp_path / "out")
    other = source if changes else model_on_disk(qwen35, tmp_path / "other")
    with pytest.raises(ConfigError, match=f"interrupted run of another kind: its {what} differ.*remove"):
        quantize(other, tmp_path / "out", QuantizeSettings(**{**SMALL.to_dict(), **changes}))
    assert quantize(source, tmp_path / "out", SMALL).resumed == 2


def test_a_model_that_differs_in_one_weight_is_another(source: Path, tmp_path: Path) -> None:
    """As after LoRA weights were merged: config, names, shapes and norms are the same."""
    _interrupt(source, tmp_path / "out")
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.3.mlp.down_proj.weight"][5, 7] += 1
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="its model differ"):
        quantize(source, tmp_path / "out", SMALL)


def test_two_runs_do_not_share_a_folder(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with alone(out), pytest.raises(ConfigError, match=r"Another run writes .*out now\. Wait"):
        quantize(source, out, SMALL)
    assert files_of(out) == {} and quantize(source, out, SMALL).resumed == 0  # the lock went with its owner


@pytest.mark.parametrize("left", [(), ("state.json.new",)])
def test_stopped_before_it_had_begun(source: Path, tmp_path: Path, left: tuple[str, ...]) -> None:
    kept = tmp_path / "out" / ".partial"
    kept.mkdir(parents=True)
    for name in left:
        (kept / name).write_text("{")
    assert quantize(source, tmp_path / "out", SMALL).resumed == 0 and not kept.exists()


def test_layers_of_an_unknown_run_are_refused(source: Path, tmp_path: Path) -> None:
    _interrupt(source, tmp_path / "out")
    (tmp_path / "out" / ".partial" / partial.STATE).unlink()
    with pytest.raises(ConfigError, match="no interrupted run"):
        quantize(source, tmp_path / "out", SMALL)


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_broken_state_is_refused(source: Path, tmp_path: Path, content: str) -> None:
    _interrupt(source, tmp_path / "out")
    (tmp_path / "out" / ".partial" / partial.STATE).write_text(content)
    with pytest.raises(ConfigError, match="another kind"):
        quantize(source, tmp_path / "out", SMALL)


def test_a_folder_with_other_files_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("precious")
    with pytest.raises(ConfigError, match="is not empty"):
        quantize(source, tmp_path / "out", SMALL)
    with pytest.raises(ConfigError, match="is a file"):
        quantize(source, tmp_path / "out" / "mine.txt", SMALL)
    assert files_of(tmp_path / "out") == {"mine.txt": b"precious"}


def test_a_finished_folder_is_not_overwritten(seed: int, tmp_path: Path) -> None:
    source = model_on_disk(llama, tmp_path / "source")
    out = quantize(source, tmp_path / "out", SMALL).out
    before = files_of(out)
    with pytest.raises(ConfigError, match="is not empty"):
        quantize(source, out, SMALL)
    assert files_of(out) == before and folder.SHARD_BYTES > 0
