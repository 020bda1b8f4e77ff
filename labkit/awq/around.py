"""The tensors around the layers, looked at before the work begins: what the loader would refuse after hours of it."""

from __future__ import annotations

from labkit.awq.source import DenseSource
from labkit.errors import CheckpointError, UnsupportedModelError
from labkit.model.checkpoint import head_is_tied
from labkit.model.checkpoint.tied import EMBEDDING, HEAD

NORM = "model.norm.weight"


def check_around(source: DenseSource) -> None:
    """Raises CheckpointError if embedding, last norm or head is missing or has another shape than the config says, and
    UnsupportedModelError for tensors that the architecture does not use."""
    config = source.model_config
    table = (config.vocab_size, config.hidden_size)
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: table, NORM: (config.hidden_size,)}
    head_is_tied(source)  # refuses a head that is missing
    if source.has(HEAD):
        shapes[HEAD] = table
    for name, shape in shapes.items():
        _check_shape(name, tuple(source.tensor(name).shape), shape)
    _refuse_unknown(source, set(shapes))


def _check_shape(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise CheckpointError(
            f"{name} has shape {list(found)}; config.json asks for {list(expected)}.",
            cure="Check that config.json belongs to these weights.",
        )


def _refuse_unknown(source: DenseSource, known: set[str]) -> None:
    """Of the layers' own tensors the layers say themselves which they do not use."""
    layers = tuple(f"model.layers.{number}." for number in range(source.model_config.num_hidden_layers))
    others = {name for name in source.names() - known if not name.startswith((*layers, "mtp."))}
    if unknown := sorted(name for name in others if not name.endswith("rotary_emb.inv_freq")):
        raise UnsupportedModelError(
            f"{source.path.name} holds tensors that this architecture does not use, such as {unknown[0]}.",
            cure="Leaving them out would change the answers: use a checkpoint of a supported architecture.",
        )
