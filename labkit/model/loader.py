"""From a path to a model that runs: open the checkpoint, read its config, build the layers."""

from __future__ import annotations

from pathlib import Path

import torch

from labkit.errors import CheckpointError
from labkit.model.checkpoint import Checkpoint, open_checkpoint
from labkit.model.config import LlamaConfig, ModelConfig, Qwen35Config, parse_config
from labkit.model.llama import Llama
from labkit.model.qwen3_5 import Qwen35
from labkit.model.weights import Progress, WeightSource

Model = Llama | Qwen35


def load_model(path: Path, dtype: torch.dtype, progress: Progress | None = None) -> tuple[Model, Checkpoint]:
    """Load the checkpoint at ``path`` for activations of ``dtype``.

    Returns the model and the opened checkpoint, whose ``report`` says what was noticed.
    Raises CheckpointError or UnsupportedModelError.
    """
    checkpoint = open_checkpoint(path)
    config = parse_config(checkpoint.config)
    source = WeightSource(checkpoint, config, dtype, progress)
    model = build_model(source, config)
    _note_unused(checkpoint)
    return model, checkpoint


def build_model(source: WeightSource, config: ModelConfig) -> Model:
    """The layers of ``config``'s architecture, with weights from ``source``."""
    match config:
        case LlamaConfig():
            return Llama(source, config)
        case Qwen35Config():
            return Qwen35(source, config)
    raise CheckpointError(f"No model for {type(config).__name__}.", cure="Use a config from parse_config.")


def _note_unused(checkpoint: Checkpoint) -> None:
    left = sorted(name for name in checkpoint.unused() if not name.startswith("mtp."))
    if left:
        checkpoint.report.note(f"{len(left)} tensors are not used, such as {left[0]}.")
