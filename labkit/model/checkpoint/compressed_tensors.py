"""One linear module of a compressed-tensors checkpoint in the format "pack-quantized".

    weight_packed      int32 [N, K / 8]   nibble j of word (n, c) is input 8c + j of output n, plus 8
    weight_scale       half [N, K / g]    weight_shape  int64 [2], N and K
    weight_zero_point  int32 [N / 8, K / g]  nibble j of word (c, i) belongs to output 8c + j, plus 8; asymmetric only
    weight_g_idx       int32 [K], the group of each input; only with act-order, which is refused

Both q and z carry the 8, so it cancels in q - z; a symmetric weight has z = 8. Source: the library compressed-tensors.
"""

from __future__ import annotations

import torch

from labkit.errors import CheckpointError
from labkit.model.checkpoint.compressed_config import Scheme, scheme_of
from labkit.model.checkpoint.layout import (
    SAME_REVISION,
    Layout,
    Shape,
    check_groups,
    check_matrices,
    check_shapes,
    count_words,
)
from labkit.model.checkpoint.quant_config import Settings, refuse
from labkit.model.checkpoint.stored import DENSE_DTYPES, WORD_DTYPES, StoredTensors
from labkit.quant.formats import packed_to_int4
from labkit.quant.int4 import Int4Weight

PACKED, SCALE, SHAPE, ZERO, ORDER = "weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx"
PACKED_FIELDS = (PACKED, SCALE, SHAPE, ZERO)
INTEGERS = ("I64", "I32")


def read_packed(
    stored: StoredTensors, quant: Settings, module: str, rows: slice | None, cols: slice | None
) -> Int4Weight:
    """The module, or the outputs in ``rows`` and inputs in ``cols``.

    quant: the config's quantization settings. Raises UnsupportedModelError for act-order and every other scheme than
    4-bit integers in groups, CheckpointError for tensors that are missing, disagree with one another or with the
    config, or cut groups.
    """
    scheme = scheme_of(quant, module, stored.spellings(module, PACKED_FIELDS))
    layout = _layout(stored, module, scheme)
    _check_order(stored, module, layout, scheme)
    part = layout.part(rows, cols)
    return packed_to_int4(
        stored.read(f"{module}.{PACKED}", part.outputs, part.input_words),
        stored.scales(f"{module}.{SCALE}", part.outputs, part.groups),
        None if scheme.symmetric else stored.read(f"{module}.{ZERO}", part.output_words, part.groups),
        in_words=part.in_words,
    )


def _layout(stored: StoredTensors, module: str, scheme: Scheme) -> Layout:
    found = {PACKED: stored.shape(f"{module}.{PACKED}", WORD_DTYPES)}
    found[SCALE] = stored.shape(f"{module}.{SCALE}", DENSE_DTYPES)
    if not scheme.symmetric:
        found[ZERO] = stored.shape(f"{module}.{ZERO}", WORD_DTYPES)
    elif f"{module}.{ZERO}" in stored:
        raise CheckpointError(f"config.json calls {module} symmetric, but it has a {ZERO}.", cure=SAME_REVISION)
    check_matrices(module, found)
    outputs, inputs = _stored_shape(stored, module)
    groups = found[SCALE][1]
    expected: dict[str, Shape] = {PACKED: (outputs, count_words(inputs)), SCALE: (outputs, groups)}
    if not scheme.symmetric:
        expected[ZERO] = (count_words(outputs), groups)
    check_shapes(f"{module} ({SHAPE} {outputs}, {inputs})", found, expected)
    return Layout(outputs, inputs, check_groups(module, inputs, groups, scheme.group_size, multiple=8))


def _stored_shape(stored: StoredTensors, module: str) -> tuple[int, int]:
    name = f"{module}.{SHAPE}"
    if stored.shape(name, INTEGERS) != (2,):
        raise CheckpointError(f"{name} does not hold two numbers.", cure=SAME_REVISION)
    outputs, inputs = stored.read(name).tolist()
    return outputs, inputs


def _check_order(stored: StoredTensors, module: str, layout: Layout, scheme: Scheme) -> None:
    """Refuse act-order. A weight_g_idx in order is as good as none."""
    name = f"{module}.{ORDER}"
    if name not in stored:
        if scheme.needs_order:
            raise refuse(module, f"compressed-tensors with act-order by group, without its {ORDER}")
        return
    stored.shape(name, INTEGERS)
    if not torch.equal(stored.read(name).long(), torch.arange(layout.inputs) // layout.group_size):
        raise refuse(module, f"compressed-tensors with act-order ({ORDER} is not in order)")
