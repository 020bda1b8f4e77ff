"""From a path to a model that runs: open the checkpoint, read its config, build the layers."""

from __future__ import annotations

from pathlib import Path

import torch

from labkit.errors import CheckpointError, UnsupportedModelError
from labkit.model.checkpoint import Checkpoint, open_checkpoint
from labkit.model.checkpoint.report import LoadReport
from labkit.model.config import LlamaConfig, ModelConfig, Qwen35Config, parse_config
from labkit.model.llama import Llama
from labkit.model.qwen3_5 import Qwen35
from labkit.model.weights import Progress, WeightSource
from labkit.ops.linear_torch import DequantizedLinear

Model = Llama | Qwen35


def load_model(
    path: Path,
    dtype: torch.dtype,
    progress: Progress | None = None,
    *,
    quantize_leftovers: str = "none",
    device: torch.device | str = "cpu",
) -> tuple[Model, Checkpoint]:
    """Load the checkpoint at ``path`` for activations of ``dtype``; see ``model.leftovers`` for quantize_leftovers.

    device: where the weights will lie. They go there as the file has them, one by one, and are put into the order of
    the kernels there. Returns the model and the opened checkpoint, whose ``report`` says what was noticed.
    Raises CheckpointError, UnsupportedModelError or ConfigError.
    """
    checkpoint = open_checkpoint(path)
    config = parse_config(checkpoint.config)
    source = WeightSource(checkpoint, config, dtype, progress, quantize_leftovers, device)
    model = build_model(source, config)
    _check_unused(checkpoint)
    source.leftovers.sum_up()
    _report_torch_linears(model, checkpoint.report)
    return model, checkpoint


def build_model(source: WeightSource, config: ModelConfig) -> Model:
    """The layers of ``config``'s architecture, with weights from ``source``."""
    match config:
        case LlamaConfig():
            return Llama(source, config)
        case Qwen35Config():
            return Qwen35(source, config)
    raise CheckpointError(f"No model for {type(config).__name__}.", cure="Use a config from parse_config.")


def _report_torch_linears(model: Model, report: LoadReport) -> None:
    """Quantized weights that the kernels do not take, where the others run on kernels."""
    for name, linear in model.linears.items():
        if isinstance(linear, DequantizedLinear) and linear.why:
            report.note(f"{name} runs in torch, dequantized to float32: {linear.why}")


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
