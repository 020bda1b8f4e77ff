"""The doctor's line about linear layers: by which rule they choose among their kernels on each GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.errors import ConfigError
from labkit.lab.doctor_check import Check, Status
from labkit.lab.drawing import counted
from labkit.ops.tuning import NATIVE_MMA
from labkit.ops.tuning_table import load_table

if TYPE_CHECKING:
    from labkit.lab.doctor_gpus import Gpu

V100_DEFAULTS = "defaults that follow published V100 figures"
NEWER_DEFAULTS = "defaults for newer GPUs: the SIMT kernels up to 8 rows, the library above"
TUNE = "labkit tune measures on this GPU which kernel is fastest."


@dataclass(frozen=True)
class Tuning:
    """What `labkit tune` left for a GPU: when it was measured and how many shapes, "" and 0 if there is no table.

    problem: why the table is not used; stale: why it may be out of date. Both "" if all is well.
    """

    date: str = ""
    shapes: int = 0
    problem: str = ""
    stale: str = ""


def find_tuning(device_name: str) -> Tuning:
    """The table of a GPU, as the linear layers will find it."""
    from labkit.ops.linear_candidates import timed_kernels

    try:
        table = load_table(device_name)
    except ConfigError as error:
        return Tuning(problem=error.message)
    if table is None:
        return Tuning()
    stale = "" if table.kernels == timed_kernels() else "labkit's kernels have changed since"
    return Tuning(table.date, len({row.shape for row in table.measured}), stale=stale)


def check_tuning(gpus: Sequence[Gpu], tunings: Mapping[str, Tuning]) -> Check:
    """Figures that others published, or a table that was measured on this GPU."""
    if not gpus:
        return Check("linear layers", Status.INFO, f"no GPU; the simulator goes by {V100_DEFAULTS}")
    found = {gpu.name: (gpu, tunings.get(gpu.name, Tuning())) for gpu in gpus}
    detail = "; ".join(_told(gpu, tuning) for gpu, tuning in found.values())
    if any(tuning.problem for _, tuning in found.values()):
        return Check("linear layers", Status.WARN, detail, "Run labkit tune on this GPU again, or delete the file.")
    if all(tuning.date and not tuning.stale for _, tuning in found.values()):
        return Check("linear layers", Status.OK, detail)
    return Check("linear layers", Status.INFO, detail, TUNE)


def _told(gpu: Gpu, tuning: Tuning) -> str:
    rules = V100_DEFAULTS if gpu.capability < NATIVE_MMA else NEWER_DEFAULTS
    if tuning.problem:
        return f"{tuning.problem} Until then {gpu.name} goes by {rules}"
    if not tuning.date:
        return f"{gpu.name} goes by {rules}"
    table = f"{gpu.name} goes by the table measured on {tuning.date[:10]} ({counted(tuning.shapes, 'shape')})"
    return f"{table}, but {tuning.stale}" if tuning.stale else table
