"""One linear module of a GPTQ checkpoint, as AutoGPTQ, GPTQModel and AutoRound write them.

    qweight  int32 [K / 8, N]      nibble j of word (c, n) is input 8c + j of output n
    qzeros   int32 [K / g, N / 8]  nibble j of word (i, c) belongs to output 8c + j
    scales   half [K / g, N]       g_idx  int32 [K], the group of each input; may be absent

What a stored zero point means, v the nibble:

    checkpoint_format gptq_v2      z = v      GPTQModel's own format; AutoRound's "auto_round" without a suffix
    checkpoint_format gptq         z = v + 1  AutoGPTQ and AutoRound (auto_gptq): z may be 16
    the same by GPTQModel          the words as a whole plus 0x11111111, the inverse of how it writes them: a zero
                                   point of 0 had borrowed from its neighbour

Sources: AutoGPTQ's and GPTQModel's packers and their v1/v2 conversion; AutoRound's choice of the packer. Act-order
(inputs whose groups are not in order) is refused.
"""

from __future__ import annotations

from typing import Literal

import torch

from labkit.errors import CheckpointError
from labkit.model.checkpoint.layout import (
    SAME_REVISION,
    Layout,
    check_groups,
    check_matrices,
    check_shapes,
    count_words,
)
from labkit.model.checkpoint.quant_config import (
    Names,
    Settings,
    auto_round_suffix,
    check_bits,
    group_size_of,
    method_of,
    module_settings,
    refuse,
)
from labkit.model.checkpoint.stored import DENSE_DTYPES, WORD_DTYPES, StoredTensors
from labkit.quant.formats import gptq_to_int4
from labkit.quant.int4 import Int4Weight

GPTQ_FIELDS = {"qweight": WORD_DTYPES, "qzeros": WORD_DTYPES, "scales": DENSE_DTYPES}
ORDER = "g_idx"
SYMMETRIC_ZERO = 8
ONES = 0x11111111  # 1 in each nibble

ZeroRule = Literal["as stored", "plus one", "word plus ones"]


def read_gptq(
    stored: StoredTensors, quant: Settings, module: str, rows: slice | None, cols: slice | None
) -> Int4Weight:
    """The module, or the outputs in ``rows`` and inputs in ``cols``.

    quant: the config's quantization settings. Raises UnsupportedModelError for act-order, other formats and bits,
    CheckpointError for tensors that are missing, disagree with one another or with the config, or cut groups.
    """
    settings, zero_rule = gptq_settings(quant, module, stored.spellings(module, GPTQ_FIELDS))
    layout = _layout(stored, module, group_size_of(settings, "group_size"))
    _check_order(stored, settings, module, layout)
    part = layout.part(rows, cols)
    qzeros = stored.read(f"{module}.qzeros", part.groups, part.output_words)
    weight = gptq_to_int4(
        stored.read(f"{module}.qweight", part.input_words, part.outputs),
        qzeros + ONES if zero_rule == "word plus ones" else qzeros,
        stored.scales(f"{module}.scales", part.groups, part.outputs),
        in_words=part.in_words,
        zero_offset=1 if zero_rule == "plus one" else 0,
    )
    _check_symmetry(weight, settings, module, zero_rule)
    return weight


def gptq_settings(quant: Settings, module: str, names: Names) -> tuple[Settings, ZeroRule]:
    """The settings that hold for the module, and what its zero points mean. names: the module's spellings.

    Raises UnsupportedModelError for other formats and bits.
    """
    settings = module_settings(quant, names)
    check_bits(module, settings, "bits")
    return settings, _zero_rule(settings, module)


def _zero_rule(settings: Settings, module: str) -> ZeroRule:
    if method_of(settings) != "gptq":
        return "as stored" if auto_round_suffix(settings) == "" else "plus one"
    kind = str(settings.get("checkpoint_format") or "gptq").lower()
    if kind == "gptq_v2":
        return "as stored"
    if kind != "gptq" or settings.get("is_marlin_format"):
        raise refuse(module, f"method gptq, checkpoint format {kind if kind != 'gptq' else 'marlin'}")
    return "word plus ones" if "gptqmodel" in str(settings.get("meta", "")).lower() else "plus one"


def _layout(stored: StoredTensors, module: str, group_size: int | None) -> Layout:
    found = {field: stored.shape(f"{module}.{field}", dtypes) for field, dtypes in GPTQ_FIELDS.items()}
    check_matrices(module, found)
    rows, (groups, outputs) = found["qweight"][0], found["scales"]
    expected = {"qweight": (rows, outputs), "qzeros": (groups, count_words(outputs)), "scales": (groups, outputs)}
    check_shapes(module, found, expected)
    return Layout(outputs, 8 * rows, check_groups(module, 8 * rows, groups, group_size, multiple=8))


def _check_order(stored: StoredTensors, settings: Settings, module: str, layout: Layout) -> None:
    """Refuse act-order. A g_idx in order is as good as none, whatever ``desc_act`` says."""
    name = f"{module}.{ORDER}"
    if name not in stored:
        if settings.get("desc_act"):
            raise refuse(module, f"act-order (desc_act) without its {ORDER}")
        return
    stored.shape(name, ("I32", "I64"))
    order = stored.read(name)
    if order.shape != (layout.inputs,):
        message = f"{name} has the shape {list(order.shape)} for {layout.inputs} inputs."
        raise CheckpointError(message, cure=SAME_REVISION)
    if not torch.equal(order.long(), torch.arange(layout.inputs) // layout.group_size):
        raise refuse(module, f"GPTQ with act-order ({ORDER} is not in order)")


def _check_symmetry(weight: Int4Weight, settings: Settings, module: str, zero_rule: ZeroRule) -> None:
    """Engines take 8 for every zero point of a symmetric file: one that says otherwise was read by the wrong rule."""
    if settings.get("sym") is True and bool((weight.groups[..., 1] != SYMMETRIC_ZERO).any()):
        other = float(weight.groups[..., 1][weight.groups[..., 1] != SYMMETRIC_ZERO][0])
        raise CheckpointError(
            f"config.json calls {module} symmetric, but it has a zero point of {other:g} where 8 is expected "
            f"(zero points are read {zero_rule}).",
            cure='Check "sym" and "checkpoint_format" (gptq or gptq_v2) in quantization_config.',
        )
