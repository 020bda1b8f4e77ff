"""Quantize a model to INT4: read it layer by layer, search, round, write.

Each layer is computed in fp32 with the unquantized weights on the calibration text, so that its inputs are those of the
original model. Memory holds one layer, its inputs, and one vector for each calibration token.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit import __version__
from labkit.awq.alone import alone
from labkit.awq.around import check_around
from labkit.awq.calibration import calibration_ids, read_text
from labkit.awq.folder import Tensors, write_config, write_tokenizer, write_weights
from labkit.awq.formats import can_hold, file_tensors, quantization_config
from labkit.awq.layer import LayerPlan, Weights, awq_layer, round_layer
from labkit.awq.observe import MOST_ROWS, LayerRunner, watch
from labkit.awq.partial import Partial
from labkit.awq.scopes import scopes_of
from labkit.awq.settings import QuantizeSettings
from labkit.awq.source import DenseSource
from labkit.errors import ConfigError
from labkit.model.checkpoint.tied import EMBEDDING
from labkit.quant.int4 import Int4Weight

Progress = Callable[[int, int, str], None]  # layers done, layers in all, what is going on


@dataclass(frozen=True)
class QuantizeReport:
    """What was done. quantized, kept: linear modules in INT4 and in 16 bits; resumed: layers that were done before;
    source_bytes, bytes: of the weights before and after; notes: what the user should know."""

    out: Path
    quantized: tuple[str, ...]
    kept: tuple[str, ...]
    resumed: int
    source_bytes: int
    bytes: int
    notes: tuple[str, ...]


@torch.inference_mode()
def quantize(
    model: Path,
    out: Path,
    settings: QuantizeSettings | None = None,
    *,
    calibration: Path | None = None,
    progress: Progress | None = None,
) -> QuantizeReport:
    """Quantize the checkpoint at ``model`` into the folder ``out``, which is new, empty, or holds an interrupted run.

    calibration: a UTF-8 text file; None takes the one of the package. The method rtn reads none.
    Raises ConfigError for a wrong setting, text or folder, CheckpointError or UnsupportedModelError for the model,
    TokenizerError if it has no tokenizer, OSError from the disk.
    """
    settings = settings or QuantizeSettings()
    if settings.method == "rtn" and calibration is not None:
        raise ConfigError("The method rtn reads no calibration text.", cure="Give none, or use the method awq.")
    source = DenseSource(model)
    run = _Run(source, settings, calibration, progress or (lambda done, total, text: None))
    with alone(out):
        return run.write(out)


class _Run:
    def __init__(
        self, source: DenseSource, settings: QuantizeSettings, calibration: Path | None, progress: Progress
    ) -> None:
        self._source, self._settings, self._progress = source, settings, progress
        self._config, self._count = source.model_config, source.model_config.num_hidden_layers
        self._plans = [self._plan(number) for number in range(self._count)]
        if not any(plan.wanted for plan in self._plans):
            raise ConfigError(
                f"No linear module of {source.path.name} can be quantized in groups of {settings.group_size}.",
                cure="Choose a smaller --group-size that divides the inputs, or skip less.",
            )
        check_around(source)
        self._ids: Tensor | None = None
        if settings.method == "awq":
            self._ids = calibration_ids(source, read_text(calibration), settings.windows, settings.window)

    def write(self, out: Path) -> QuantizeReport:
        """Do what is not done yet in the folder ``out``."""
        self._out, self._partial = out, Partial(out, self._identity())
        return self._finish(self._layers())

    def _plan(self, number: int) -> LayerPlan:
        scopes, size = scopes_of(self._config, number), self._settings.group_size
        wanted = {
            module
            for scope in scopes
            for module, outputs in scope.readers.items()
            if can_hold(outputs, len(scope.tie), size) and not self._settings.skips(f"model.layers.{number}.{module}")
        }
        return LayerPlan(scopes, frozenset(wanted), size, f"model.layers.{number}.")

    def _identity(self) -> dict[str, Any]:
        """All that decides the bytes of the result."""
        text = "" if self._ids is None else hashlib.sha256(self._ids.numpy().tobytes()).hexdigest()
        programs = {"labkit": __version__, "torch": torch.__version__}
        model = self._source.fingerprint()
        return {"settings": self._settings.to_dict(), "model": model, "calibration text": text, "programs": programs}

    def _layers(self) -> int:
        """Finish every layer; returns how many were finished before."""
        done = [self._partial.has(number) for number in range(self._count)]
        hidden = self._embedded() if self._ids is not None and not all(done) else None
        for number in range(self._count):
            self._progress(number, self._count, f"layer {number + 1} of {self._count}")
            if hidden is not None and not all(done[number:]):
                self._awq_layer(number, hidden, done[number])
            elif not done[number]:
                self._source.layer(number)  # refuses what does not fit the architecture
                self._save(number, round_layer(self._source.layer_tensors(number), self._plans[number]))
        return sum(done)

    def _embedded(self) -> Tensor:
        """fp32 [windows, window, D]: what the first layer reads."""
        assert self._ids is not None
        return self._source.tensor(EMBEDDING)[self._ids].float()

    def _awq_layer(self, number: int, hidden: Tensor, done: bool) -> None:
        """Run a layer, ``hidden`` in place; quantize it unless that is done."""
        layer, runner = self._source.layer(number), LayerRunner(self._config, hidden.shape[1])
        step = -(-hidden.shape[0] * hidden.shape[1] // MOST_ROWS)
        seen = {} if done else watch(layer, self._settings.group_size, step)
        for i, window in enumerate(hidden):
            hidden[i] = runner.run(layer, number, window)
        if not done:
            self._save(number, awq_layer(self._source.layer_tensors(number), self._plans[number], seen))

    def _save(self, number: int, weights: Weights) -> None:
        prefix, tensors = f"model.layers.{number}.", Tensors()
        for name, weight in weights.items():
            if isinstance(weight, Int4Weight):
                tensors |= file_tensors(prefix + name.removesuffix(".weight"), weight, self._settings.format)
            else:
                tensors[prefix + name] = self._source.as_written(prefix + name, weight)
        self._partial.save(number, tensors)

    def _finish(self, resumed: int) -> QuantizeReport:
        """Write the folder from the finished layers and the tensors around them."""
        self._progress(self._count, self._count, "writing")
        write_weights(self._out, self._pieces())
        kept = self._names(wanted=False)
        quantization = quantization_config(self._settings.format, self._settings.group_size, kept)
        write_config(self._out, self._source, quantization)
        write_tokenizer(self._out, self._source)
        self._partial.remove()
        size = sum(file.stat().st_size for file in self._out.glob("*.safetensors"))
        notes = tuple(self._notes())
        quantized = tuple(self._names(wanted=True))
        return QuantizeReport(self._out, quantized, tuple(kept), resumed, self._source.total_bytes, size, notes)

    def _pieces(self) -> Iterator[Tensors]:
        around = sorted(name for name in self._source.names() if not name.startswith("model.layers."))
        for name in around:
            yield {name: self._source.as_written(name, self._source.tensor(name))}
        for number in range(self._count):
            yield self._partial.load(number)

    def _names(self, *, wanted: bool) -> list[str]:
        """Full names of the linear modules that are quantized, or of those that are not, the head among them."""
        found = [
            f"model.layers.{number}.{module}"
            for number, plan in enumerate(self._plans)
            for scope in plan.scopes
            for module in scope.readers
            if (module in plan.wanted) == wanted
        ]
        extra = sorted({name.removesuffix(".weight") for name in self._source.names() if _is_mtp_matrix(name)})
        return found if wanted else ["lm_head", *found, *extra]

    def _notes(self) -> Iterator[str]:
        if self._source.is_gguf:
            yield f"{self._source.path.name}: weights of 4 or 8 bits were dequantized to fp16 first."
        if unfit := [name for name in self._names(wanted=False)[1:] if self._is_unfit(name)]:
            yield (
                f"{len(unfit)} modules stay 16-bit, such as {unfit[0]}: 4 bits need outputs in eights and inputs in "
                f"groups of {self._settings.group_size}. A smaller --group-size may take them."
            )
        known = [name for name in self._names(wanted=True) + self._names(wanted=False) if _is_in_a_layer(name)]
        for pattern in self._settings.skip:
            if not any(re.search(pattern, name) for name in known):
                yield f"--skip {pattern!r} changed nothing: no linear module of a layer, such as {known[0]}, has it."
        yield from self._source.report.notes

    def _is_unfit(self, name: str) -> bool:
        """Whether a module stays 16-bit for its shape alone."""
        return _is_in_a_layer(name) and not self._settings.skips(name)


def _is_in_a_layer(name: str) -> bool:
    return name.startswith("model.layers.")


def _is_mtp_matrix(name: str) -> bool:
    return name.startswith("mtp.") and name.endswith(".weight") and "norm" not in name
