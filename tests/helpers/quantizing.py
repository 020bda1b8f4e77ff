"""Small models on disk that the quantizer takes, and readings of what it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from helpers.models import saved
from helpers.vocabulary import byte_level_core, write_tokenizer
from torch import Tensor

from labkit.awq.settings import QuantizeSettings
from labkit.model.checkpoint import Checkpoint
from labkit.quant.int4 import Int4Weight

OUTLIERS = 3  # inputs that a norm makes larger than the others, as in real models
SMALL = QuantizeSettings(group_size=32, windows=4, window=48)


def model_on_disk(make: Callable[..., Any], folder: Path, **changes: Any) -> Path:
    """A random model with a tokenizer and a few loud channels, in fp32; its matrices hold fp16 values."""
    core = byte_level_core()
    model = make(vocab_size=core.get_vocab_size(with_added_tokens=True), **changes)
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            weight.copy_(weight.half().float())
        elif "layernorm" in name and "layers" in name:
            weight[torch.randperm(len(weight))[:OUTLIERS]] += 8
    saved(model, folder)
    write_tokenizer(folder, core, {"eos_token": "<|end|>"})
    return folder


def dense_state(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """All tensors of a checkpoint in fp32, those in 4 bits dequantized to ``dtype`` first."""
    packed = {name.removesuffix(".qweight").removesuffix(".weight_packed") for name in checkpoint.names()}
    modules = {name for name in packed - checkpoint.names() if name.startswith("model.")}
    state = {}
    for module in modules:
        weight = checkpoint.linear(module)
        assert isinstance(weight, Int4Weight)
        state[f"{module}.weight"] = weight.dequantize(dtype).float()
    plain = (name for name in checkpoint.names() if not name.startswith(tuple(f"{module}." for module in modules)))
    return state | {name: checkpoint.tensor(name).float() for name in plain}


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
