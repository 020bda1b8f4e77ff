"""Finished layers, kept in the output folder until all are done: an interrupted run goes on where it stopped.

``.partial/state.json`` says which run they belong to; ``.partial/layer-0007.safetensors`` holds the tensors of layer 7
as they will be written. A layer's file appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from labkit.errors import ConfigError

STATE = "state.json"
SCRATCH = "scratch.safetensors"


class Partial:
    """The finished layers of one run.

    run: what decides the result, as JSON holds it: settings, a fingerprint of the model, of the calibration text, and
    the versions of the programs. Raises ConfigError if the folder ``out``, which must be there, holds anything but an
    interrupted run of this kind.
    """

    def __init__(self, out: Path, run: dict[str, Any]) -> None:
        self.folder = out / ".partial"
        self._run = json.loads(json.dumps(run))
        if (self.folder / STATE).is_file():
            self._check_same_run(out)
        elif any(path != self.folder for path in out.iterdir()) or any(self.folder.glob("*.safetensors")):
            cure = "Name a folder that is empty or does not exist; `labkit eval perplexity` measures a finished model."
            raise ConfigError(f"{out} is not empty, and what it holds is no interrupted run.", cure=cure)
        else:
            self.folder.mkdir(exist_ok=True)  # it is there if a run was stopped before it had begun
            self._write_state()
        (self.folder / SCRATCH).unlink(missing_ok=True)

    def _write_state(self) -> None:
        scratch = self.folder / f"{STATE}.new"
        scratch.write_text(json.dumps(self._run, indent=1), encoding="utf-8")
        os.replace(scratch, self.folder / STATE)

    def _check_same_run(self, out: Path) -> None:
        try:
            found = json.loads((self.folder / STATE).read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if found == self._run:
            return
        known = isinstance(found, dict)
        differ = [key for key in self._run if found.get(key) != self._run[key]] if known else ["everything"]
        raise ConfigError(
            f"{out} holds an interrupted run of another kind: its {', '.join(differ)} differ(s).",
            cure=f"Repeat the first command to finish it, or remove {self.folder} to start anew.",
        )

    def has(self, layer: int) -> bool:
        """Whether the layer is finished; one that cannot be read counts as missing."""
        try:
            with safe_open(str(self._file(layer)), framework="pt") as file:
                return bool(file.keys())
        except (SafetensorError, OSError):
            return False

    def save(self, layer: int, tensors: dict[str, Tensor]) -> None:
        """Keep the tensors of a finished layer, by their full names. Raises OSError if the disk does not take them."""
        scratch = self.folder / SCRATCH
        write_tensors(scratch, tensors)
        os.replace(scratch, self._file(layer))

    def load(self, layer: int) -> dict[str, Tensor]:
        """The tensors of a finished layer."""
        with safe_open(str(self._file(layer)), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)

    def remove(self) -> None:
        """Forget it all: the run is done."""
        shutil.rmtree(self.folder)

    def _file(self, layer: int) -> Path:
        return self.folder / f"layer-{layer:04}.safetensors"


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file as transformers writes it. Raises OSError if the disk does not take it."""
    contiguous = {name: tensors[name].contiguous() for name in sorted(tensors)}
    try:
        save_file(contiguous, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{path.name} cannot be written ({error})") from error
