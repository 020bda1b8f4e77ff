"""One name per tensor, whatever class the checkpoint was saved from."""

from __future__ import annotations

# The text model inside a vision wrapper, in the three spellings found in the wild.
TEXT_PREFIXES = ("model.language_model.", "language_model.model.")
HEAD_PREFIX = "language_model.lm_head."
VISION_PREFIXES = ("model.visual.", "visual.", "model.vision_tower.", "vision_tower.")


def is_vision(name: str) -> bool:
    """Whether the tensor belongs to the vision tower, which labkit does not run."""
    return name.startswith(VISION_PREFIXES)


def canonical_name(name: str) -> str:
    """``model.layers.0...``, ``lm_head...`` and ``mtp...``, without a wrapper's prefix."""
    for prefix in TEXT_PREFIXES:
        if name.startswith(prefix):
            return "model." + name.removeprefix(prefix)
    if name.startswith(HEAD_PREFIX):
        return "lm_head." + name.removeprefix(HEAD_PREFIX)
    return name
