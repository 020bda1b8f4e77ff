"""One bounded fp16 buffer into which weights are dequantized, some outputs at a time, for the library's matmul."""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.errors import KernelArgumentError

# The largest projection of Qwen3.5-27B on two GPUs, 8704 x 5120, fits whole; 85 MiB is also what the published
# dequantize + cuBLAS figure was measured with. Larger weights go through it in ranges of outputs.
WORKSPACE_BYTES = 8704 * 5120 * 2
HALF_BYTES = 2


class HalfWorkspace:
    """Memory for dequantized weights that all layers of a device share; one matmul at a time uses it.

    nbytes: at most this much is held, allocated when first used and no more than was ever asked for. Work on one stream
    is in order, so the next layer may overwrite what the last one read.
    """

    def __init__(self, nbytes: int = WORKSPACE_BYTES) -> None:
        self.nbytes = nbytes
        self._buffers: dict[torch.device, Tensor] = {}

    def rows(self, columns: int, multiple: int) -> int:
        """How many rows of ``columns`` halves fit, as a multiple of ``multiple``.

        Raises KernelArgumentError if not even ``multiple`` rows fit.
        """
        fitting = self.nbytes // (HALF_BYTES * columns) // multiple * multiple
        if not fitting:
            raise KernelArgumentError(
                f"The workspace of {self.nbytes:,} bytes does not hold {multiple} rows of {columns:,} halves.",
                cure=f"Make it at least {multiple * columns * HALF_BYTES:,} bytes large.",
            )
        return fitting

    def take(self, rows: int, columns: int, device: torch.device) -> Tensor:
        """An uninitialised fp16 [rows, columns] view, valid until the next call; see ``rows`` for how many may be."""
        wanted = rows * columns
        if wanted * HALF_BYTES > self.nbytes:
            message = f"{rows:,} rows of {columns:,} halves do not fit the workspace of {self.nbytes:,} bytes."
            raise KernelArgumentError(message, cure="Ask rows() how many do.")
        buffer = self._buffers.get(device)
        if buffer is None or buffer.numel() < wanted:
            self._buffers.pop(device, None)  # before the larger one is there: both together would exceed the bound
            buffer = self._buffers[device] = torch.empty(wanted, dtype=torch.float16, device=device)
        return buffer[:wanted].view(rows, columns)
