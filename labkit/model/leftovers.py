"""``--quantize-leftovers``: the matrices that a checkpoint left in half precision, packed while it is loaded.

By round to nearest, which looks at the weights alone: `labkit eval perplexity --quantize-leftovers int4` says what it
costs. Norms, convolutions, decays and the embedding table stay as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.errors import ConfigError, KernelArgumentError
from labkit.model.checkpoint.report import LoadReport
from labkit.quant.int4 import Int4Weight
from labkit.quant.int8 import Int8Weight
from labkit.quant.round_to_nearest import QUANTIZERS

CHOICES = ("none", *QUANTIZERS)


class Leftovers:
    """What becomes of dense matrices: ``none`` leaves them, ``int4`` and ``int8`` pack them.

    dtype: of the activations. report: gets a note for every matrix that stays dense, and one that sums up.
    Raises ConfigError for another kind.
    """

    def __init__(self, kind: str, dtype: torch.dtype, report: LoadReport) -> None:
        if kind not in CHOICES:
            raise ConfigError(f"quantize_leftovers is {kind!r}.", cure=f"Choose one of {', '.join(CHOICES)}.")
        self.kind, self.dtype, self.report = kind, dtype, report
        self.packed: list[str] = []
        self.bytes_before = self.bytes_after = 0

    def pack(self, module: str, weight: Tensor | Int4Weight) -> Tensor | Int4Weight | Int8Weight:
        """The weight [N, K] of ``module`` packed, or as it is: if nothing is to be packed, or it cannot be."""
        if self.kind == "none" or isinstance(weight, Int4Weight):
            return weight
        reason = ""
        if self.dtype != torch.float32 and weight.dtype == torch.float32:
            reason = "half precision would lose its range."
        else:
            try:
                return self._packed(module, weight)
            except KernelArgumentError as error:
                reason = error.message
        self.report.note(f"{module} is not packed to {self.kind}: {reason}")
        return weight

    def tied_head(self, table: Tensor) -> Tensor | Int4Weight | Int8Weight:
        """The embedding table as an output head: a packed copy of it, or the table."""
        head = self.pack("lm_head", table)
        if head is not table:
            self.report.note(
                f"The output head is tied to the embedding; its {self.kind} copy takes {_mb(head.nbytes)} beside the "
                "table, which stays for the lookup."
            )
        return head

    def sum_up(self) -> None:
        """Note what was packed."""
        if self.packed:
            count = "1 matrix" if len(self.packed) == 1 else f"{len(self.packed)} matrices"
            sizes = f"{_mb(self.bytes_before)} became {_mb(self.bytes_after)}"
            self.report.note(f"{count} packed to {self.kind} by round to nearest: {sizes}.")

    def _packed(self, module: str, weight: Tensor) -> Int4Weight | Int8Weight:
        made = QUANTIZERS[self.kind](weight)
        self.packed.append(module)
        self.bytes_before += weight.nbytes
        self.bytes_after += made.nbytes
        return made


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
