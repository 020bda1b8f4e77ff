"""A checkpoint with a single quantized module, for tests of the loader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.packers import write_safetensors
from torch import Tensor

from labkit.errors import CheckpointError, LabkitError
from labkit.model.checkpoint import Checkpoint, open_checkpoint
from labkit.quant.int4 import Int4Weight

MODULE = "model.layers.0.mlp.up_proj"


def write_module(
    directory: Path,
    fields: Mapping[str, Tensor | None],
    quantization: Mapping[str, Any],
    *,
    module: str = MODULE,
    prefix: str = "model.",
) -> Checkpoint:
    """``module`` with these tensors; None leaves one out. prefix: what ``model.`` at the head of its name becomes."""
    state = {f"{module}.{field}": tensor for field, tensor in fields.items() if tensor is not None}
    write_safetensors(directory, state, {"quantization_config": quantization}, prefix=prefix)
    return open_checkpoint(directory)


def int4(checkpoint: Checkpoint, **part: slice) -> Int4Weight:
    """The module, or its ``rows`` and ``cols``, which must be INT4."""
    weight = checkpoint.linear(MODULE, **part)
    assert isinstance(weight, Int4Weight)
    return weight


def refused(checkpoint: Checkpoint, saying: str, kind: type[LabkitError] = CheckpointError) -> None:
    """Loading the module fails with this error, which names the module and a cure."""
    with pytest.raises(kind, match=saying) as caught:
        checkpoint.linear(MODULE)
    assert type(caught.value) is kind and caught.value.cure and MODULE in str(caught.value)
