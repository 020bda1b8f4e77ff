"""The same weights as a Hugging Face transformers model, for the comparison.

transformers reads plain safetensors directories. Of GGUF and INT4 checkpoints it gets a plain copy with dequantized
weights, written beforehand, so that its own loader is what is measured.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from labkit.errors import MissingExtraError, UnsupportedModelError
from labkit.model.checkpoint import Checkpoint, open_checkpoint
from labkit.model.config import text_config
from labkit.quant.int4 import Int4Weight

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
FILE_DETAILS = ("quantization_config", "dtype", "torch_dtype")  # of a config, but not of the model


def transformers() -> Any:
    """The package, told to be quiet. Raises MissingExtraError if it is not installed."""
    try:
        package = import_module("transformers")
    except ImportError as error:
        raise MissingExtraError(
            "The comparison needs the package transformers.", cure="Run `pip install transformers`."
        ) from error
    package.utils.logging.set_verbosity_error()
    package.utils.logging.disable_progress_bar()
    return package


def plain_checkpoint(path: Path, scratch: Path) -> Path:
    """A directory that transformers can load: ``path`` itself, or a dequantized fp32 copy written to ``scratch``.

    Raises MissingExtraError, UnsupportedModelError, or CheckpointError.
    """
    checkpoint = open_checkpoint(path)
    if path.is_dir() and "quantization_config" not in checkpoint.config:
        return path
    settings = {key: value for key, value in text_config(checkpoint.config).items() if key not in FILE_DETAILS}
    names = _parameter_names(settings)
    save_file({name: _dense(checkpoint, name) for name in names}, scratch / "model.safetensors", {"format": "pt"})
    (scratch / "config.json").write_text(json.dumps(settings))
    return scratch


def load_peer(directory: Path, dtype: torch.dtype) -> Any:
    """The model of a plain directory, in evaluation mode."""
    return transformers().AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()


def _parameter_names(settings: dict[str, Any]) -> list[str]:
    package, rest = transformers(), dict(settings)
    kind = str(rest.pop("model_type", ""))
    try:
        config = package.AutoConfig.for_model(kind, **rest)
    except ValueError as error:
        raise UnsupportedModelError(
            f"transformers {package.__version__} does not know the architecture {kind}.", cure="Install a newer one."
        ) from error
    with torch.device("meta"):  # names and shapes only
        model = package.AutoModelForCausalLM.from_config(config)
    return [name for name, _ in model.named_parameters()]


def _dense(checkpoint: Checkpoint, name: str) -> Tensor:
    if name == HEAD and not checkpoint.has(HEAD):
        name = EMBEDDING
    if checkpoint.has(name):
        return checkpoint.tensor(name).float().contiguous()
    weight = checkpoint.linear(name.removesuffix(".weight"))
    return weight.dequantize() if isinstance(weight, Int4Weight) else weight.float().contiguous()
