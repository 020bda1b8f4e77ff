"""Operations of the models that have no CUDA kernel yet: they run in torch on every executor.

What counts is the mathematics of a layer, a function of ``labkit.ops`` that a forward pass calls. What the library does
in one call (the lookup of an embedding, a matrix product, joining and cutting tensors) does not, nor what
``NOT_COUNTED`` names, each with the reason. `labkit doctor` shows the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TorchOp:
    """functions: of ``labkit.ops``, as "module.function". reason: why they have no kernel."""

    functions: tuple[str, ...]
    reason: str


WITHOUT_KERNELS: Mapping[str, TorchOp] = {}
"""By the names that reports show. None is left; one that comes before its kernel belongs here."""

NOT_COUNTED: Mapping[str, str] = {
    "rope.inverse_frequencies": "made while a model is loaded",
    "rope.llama3_frequencies": "made while a model is loaded",
    "rope.rope_table": "sine and cosine of a step's positions, once for all layers",
    "linear.make_linear": "made while a model is loaded; the layers choose among the ladders of products",
    "sparse_prefill.applies": "decided on the host",
    "sparse_prefill.choose_pages": "scores come from the ladder sparse_scores; sort and sum are the library's",
}
"""Functions that models and their loader use and that are no operation without kernels, and why."""
