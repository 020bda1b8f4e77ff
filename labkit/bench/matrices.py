"""The matrices that a model's linear layers multiply by: what `labkit tune` measures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from labkit.bench.fit_bytes import split_problems
from labkit.bench.fit_modules import COLS, KV_ROWS, ROWS, Module
from labkit.bench.fit_weights import Weight, weigh
from labkit.errors import ConfigError
from labkit.ops.tuning_table import Kind, WeightShape
from labkit.quant.pack import GROUP_SIZES

# Projections of one input, which the loader joins to one matrix where their formats allow it.
JOINED = (
    ("q_proj", "k_proj", "v_proj"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
    ("gate_proj", "up_proj"),
)
EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
FORMATS: dict[str, tuple[Kind, int]] = {
    "fp16": ("half", 0),
    **{f"g{size}": ("int4", size) for size in GROUP_SIZES},
    **{f"int8-g{size}": ("int8", size) for size in GROUP_SIZES},
}
SPELLED = re.compile(r"([1-9]\d*)x([1-9]\d*):([\w-]+)")
CURE = f"Write outputs x inputs : format, such as 17408x5120:g128; formats: {', '.join(FORMATS)}."


def parse_shape(text: str) -> WeightShape:
    """ "17408x5120:g128" as a shape. Raises ConfigError."""
    match = SPELLED.fullmatch(text)
    if match is None or match[3] not in FORMATS:
        raise ConfigError(f"{text!r} is no shape.", cure=CURE)
    (kind, group), outputs, inputs = FORMATS[match[3]], int(match[1]), int(match[2])
    if group and inputs % group:
        raise ConfigError(f"{text!r}: {inputs} inputs do not divide into groups of {group}.", cure=CURE)
    return WeightShape(kind, outputs, inputs, group)


def model_shapes(model: str | Path, weights: str | None = None, tp_size: int = 1) -> list[WeightShape]:
    """The matrices of one rank's linear layers, each shape once; ``model`` and ``weights`` as ``weigh`` takes them.

    INT4 groups that the kernels do not take are left out: such a module runs in torch. Raises ConfigError for a number
    of ranks that does not divide the model, and what ``weigh`` raises.
    """
    weighed = weigh(model, weights)
    for problem in split_problems(weighed, tp_size):
        raise ConfigError(problem, cure="Choose another --tp-size.")
    config = weighed.geometry.config
    linears = [weight for weight in weighed.weights if _is_linear(weight.module)]
    if all(weight.module.name != HEAD for weight in linears):  # tied to the embedding
        linears.append(Weight(Module(HEAD, (config.vocab_size, config.hidden_size), ROWS), 0))
    shapes = dict.fromkeys(_joined(linears, tp_size, config.num_key_value_heads))
    return [shape for shape in shapes if shape.kind == "half" or shape.group in GROUP_SIZES]


def _is_linear(module: Module) -> bool:
    """Matrices apart from the embedding, the short convolution, and the routed experts, whose shapes have three."""
    left_out = module.is_mtp or module.name == EMBEDDING or module.name.endswith(".conv1d")
    return len(module.shape) == 2 and not left_out


def _joined(weights: Sequence[Weight], ranks: int, kv_heads: int) -> Iterator[WeightShape]:
    """Neighbours of one input and format as one matrix."""
    placed = [(_place(weight.module.name), _rank_shape(weight, ranks, kv_heads)) for weight in weights]
    for _, run in groupby(placed, lambda item: (item[0], item[1].kind, item[1].group)):
        shapes = [shape for _, shape in run]
        yield replace(shapes[0], outputs=sum(shape.outputs for shape in shapes))


def _place(name: str) -> str:
    """The same text for projections that are joined."""
    block, _, leaf = name.rpartition(".")
    return next((f"{block}.{names[0]}" for names in JOINED if leaf in names), name)


def _rank_shape(weight: Weight, ranks: int, kv_heads: int) -> WeightShape:
    outputs, inputs = weight.module.shape
    split = weight.module.split
    outputs //= {ROWS: ranks, KV_ROWS: min(ranks, kv_heads)}.get(split, 1)
    inputs //= ranks if split == COLS else 1
    if weight.groups:
        return WeightShape("int4", outputs, inputs, weight.group_size)
    return WeightShape("half", outputs, inputs, 0)
