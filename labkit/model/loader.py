"""From a path to a model that runs: open the checkpoint, read its config, build the layers."""

from __future__ import annotations

from pathlib import Path

import torch

from labkit.errors import CheckpointError, UnsupportedModelError
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
    _check_unused(checkpoint)
    return model, checkpoint


def build_model(source: WeightSource, config: ModelConfig) -> Model:
    """The layers of ``config``'s architecture, with weights from ``source``."""
    match config:
        case LlamaConfig():
            return Llama(source, config)
        case Qwen35Config():
            return Qwen35(source, config)
    raise CheckpointError(f"No model for {type(config).__name__}.", cure="Use a config from parse_config.")


def _check_unused(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose layers hold tensors that nobody read: a bias or a norm we leave out changes the answer.

    The multi-token prediction block may stay unread, and tables that older files carry along.
    """
    left = sorted(name for name in checkpoint.unused() if not name.startswith("mtp."))
    harmless = [name for name in left if name.endswith("rotary_emb.inv_freq")]
    if harmless:
        checkpoint.report.note(f"{len(harmless)} tensors are not needed, such as {harmless[0]}.")
    unknown = [name for name in left if name not in harmless]
    if unknown:
        raise UnsupportedModelError(
            f"{checkpoint.path.name} holds {len(unknown)} tensors that this architecture does not use, such as "
            f"{unknown[0]}.",
            cure="Leaving them out would change the answers: use a checkpoint of a supported architecture.",
        )
