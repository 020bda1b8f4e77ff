"""One linear module of an AutoAWQ "gemm" checkpoint: three tensors that must agree.

    qweight  int32 [K, N / 8]      qzeros  int32 [K / g, N / 8]      scales  half [K / g, N]

They lie transposed and packed along the outputs, so a slice of outputs is a slice of columns here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.errors import CheckpointError, UnsupportedModelError
from labkit.model.checkpoint.base import section

AWQ_FIELDS = ("qweight", "qzeros", "scales")
PER_WORD = 8  # nibbles in an int32

Shape = tuple[int, ...]
Span = tuple[int, int]


def check_awq_config(config: Mapping[str, Any], module: str) -> int | None:
    """The group size that the config names; None where it is -1, one group per output.

    Raises UnsupportedModelError unless the config says AutoAWQ, version gemm, 4 bits.
    """
    quant = section(config, "quantization_config") or section(section(config, "text_config"), "quantization_config")
    method = str(quant.get("quant_method", "unknown")).lower()
    version = str(quant.get("version", "gemm")).lower()
    bits = quant.get("bits", quant.get("w_bit", 4))
    if (method, version) != ("awq", "gemm") or bits not in (4, "4"):
        raise UnsupportedModelError(
            f"{module} is quantized in a format that is not supported yet: "
            f"method {method}, version {version}, {bits} bits.",
            cure="Use a checkpoint in AutoAWQ's gemm format with 4 bits.",
        )
    size = quant.get("group_size", quant.get("q_group_size", -1))
    if not isinstance(size, int):
        raise CheckpointError(f"config.json gives the group size {size!r}.", cure="Fetch config.json again.")
    return size if size > 0 else None


@dataclass(frozen=True)
class AwqLayout:
    """The geometry of a module: N outputs, K inputs, g inputs per group."""

    outputs: int
    inputs: int
    group_size: int

    @staticmethod
    def of(module: str, qweight: Shape, qzeros: Shape, scales: Shape, group_size: int | None) -> AwqLayout:
        """Derived from the scales and the inputs; raises CheckpointError if the three shapes disagree."""
        if all(len(shape) == 2 and min(shape) > 0 for shape in (qweight, qzeros, scales)):
            inputs, (groups, outputs) = qweight[0], scales
            size = group_size or inputs
            words = outputs // PER_WORD
            fits = outputs == words * PER_WORD and inputs == groups * size and size % 2 == 0
            if fits and (qweight, qzeros) == ((inputs, words), (groups, words)):
                return AwqLayout(outputs, inputs, size)
        raise CheckpointError(
            f"{module} has shapes that do not belong together: qweight {list(qweight)}, qzeros {list(qzeros)}, "
            f"scales {list(scales)}, group size {group_size or 'of all inputs'}.",
            cure="Fetch the checkpoint again; config.json must be from the same revision.",
        )

    def words(self, rows: Span) -> Span:
        """The packed columns that hold the outputs in ``rows``."""
        return rows[0] // PER_WORD, -(-rows[1] // PER_WORD)
