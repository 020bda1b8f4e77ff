"""Which kernel a linear layer runs on: what `labkit tune` measured on this device, else rules that follow figures.

Several kernels multiply with the same weights and give the same result up to rounding. Which is fastest depends on the
rows of the call (tokens of the step), the shape, the group size and the device, so every layer asks here, once for each
number of rows. The simulator stands for a V100 and goes by its rules.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from labkit.errors import ConfigError
from labkit.ops.tuning_table import TuningTable, WeightShape, load_table

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("labkit")

NATIVE_MMA = (8, 0)  # GPUs before it execute mma.m8n8k4; from it on the driver emulates it with FFMA


@dataclass(frozen=True)
class Place:
    """A device as the rules see it: the name under which its table is kept ("" for none), and its capability."""

    name: str
    capability: tuple[int, int]


SIMULATED = Place("", (7, 0))


@dataclass(frozen=True)
class Rule:
    """Up to ``most_rows`` rows (None: any number) run on ``candidate``, and why."""

    most_rows: int | None
    candidate: str
    reason: str


Rules = tuple[Rule, ...]

INT8_RULES: Rules = (
    Rule(8, "gemv_int8", "few rows are bound by the bytes of the weights, which it reads once"),
    Rule(None, "dequant_matmul", "there is no INT8 tensor core on a V100: fp16 products by the library"),
)
HALF_RULES: Rules = (
    Rule(8, "gemv_half", "few rows are bound by the bytes of the weights, which it reads once"),
    Rule(None, "matmul", "cuBLAS reached 101 TFLOP/s on a V100 PCIe (published, NVIDIA developer forum, topic 79781)"),
)
NEWER_HALF_RULES: Rules = (
    Rule(2, "gemv_half", "as fast as the library at 1 and 2 rows (measured on an H200, docs/int4.md)"),
    Rule(None, "matmul", "the library is faster from 4 rows on (measured on an H200, docs/int4.md)"),
)
V100_RULES: dict[str, Rules] = {
    "int4": (
        Rule(
            3,
            "awq_gemv",
            "bound by bandwidth; at 4 rows its sm_70 code has 3.9 integer instructions a weight where a V100 at full "
            "bandwidth has room for 4.7 (modelled), and the tensor cores have less to do",
        ),
        Rule(
            16,
            "awq_gemm/4_small_m",
            "tensor cores with the quad-pairs along N took 0.69 of the SIMT time at 5 rows and 0.51 at 8 (published, "
            "v100-skinny); two tiles of 8 rows share a pass over the weights",
        ),
        Rule(
            127,
            "awq_gemm/5_large_tile",
            "one tile of 128 rows reads the weights once, in 4 bits; to dequantize them first moves 8 times the bytes",
        ),
        Rule(
            None,
            "dequant_matmul",
            "76.4 TFLOP/s against 51.5 for a fused kernel at 4096 rows (published, 1Cat, TurboMind); from 128 rows on "
            "the library fills the 80 SMs with smaller tiles where the fused tile cannot (modelled)",
        ),
    ),
    "int8": INT8_RULES,
    "half": HALF_RULES,
}
NEWER_RULES: dict[str, Rules] = {
    "int4": (
        Rule(8, "awq_gemv", "bound by bandwidth, and mma.m8n8k4 is emulated here"),
        Rule(None, "dequant_matmul", "the library uses this GPU's own tensor cores; mma.m8n8k4 is emulated here"),
    ),
    "int8": INT8_RULES,
    "half": NEWER_HALF_RULES,
}


def rules_for(capability: tuple[int, int]) -> dict[str, Rules]:
    """The rules of a GPU without a table, by the kind of weight."""
    return V100_RULES if capability < NATIVE_MMA else NEWER_RULES


def rule_for(kind: str, rows: int, capability: tuple[int, int]) -> Rule:
    """The rule for a call with so many rows (at least 1) on weights of a kind: "int4", "int8" or "half"."""
    rules = rules_for(capability)[kind]
    return next(rule for rule in rules if rule.most_rows is None or rows <= rule.most_rows)


def choose(shape: WeightShape, rows: int, place: Place) -> str:
    """The name of the candidate (``labkit.ops.candidates``) for a call with ``rows`` rows."""
    table = table_for(place.name)
    measured = table.best(shape, rows) if table is not None else None
    return measured or rule_for(shape.kind, rows, place.capability).candidate


def ranges(shape: WeightShape, place: Place) -> list[tuple[int | None, str]]:
    """(most rows, candidate) over all numbers of rows, in order; the last has None, for any more."""
    ends = {rule.most_rows for rule in rules_for(place.capability)[shape.kind] if rule.most_rows}
    table = table_for(place.name)
    ends.update(table.rows_of(shape) if table is not None else ())
    found: list[tuple[int | None, str]] = []
    for end in (*sorted(ends), None):
        name = choose(shape, end if end else max(ends, default=0) + 1, place)
        if found and found[-1][1] == name:
            found.pop()
        found.append((end, name))
    return found


@cache
def table_for(device_name: str) -> TuningTable | None:
    """The table of a device, read when first asked for; None without one.

    A table decides about speed alone, so one that cannot be used does not stop the engine: that is logged once, and
    `labkit doctor` names it with the cure.
    """
    if not device_name:
        return None
    try:
        return load_table(device_name)
    except ConfigError as error:
        logger.warning("%s Until then the defaults choose the kernels.", error)
        return None


@cache
def place_of(device: torch.device) -> Place:
    """The place of tensors on ``device``: a GPU, or for tensors on the CPU the simulator."""
    if device.type != "cuda":
        return SIMULATED
    import torch

    return Place(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))
