"""One linear module of an AutoAWQ "gemm" checkpoint: three tensors that must agree.

    qweight  int32 [K, N / 8]      qzeros  int32 [K / g, N / 8]      scales  half [K / g, N]

They lie transposed and packed along the outputs, so a slice of outputs is a slice of columns here. AutoRound writes the
same (packing format ``auto_round:auto_awq``).
"""

from __future__ import annotations

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
    check_bits,
    group_size_of,
    method_of,
    module_settings,
    refuse,
)
from labkit.model.checkpoint.stored import DENSE_DTYPES, WORD_DTYPES, StoredTensors
from labkit.quant.formats import awq_to_int4
from labkit.quant.int4 import Int4Weight

AWQ_FIELDS = {"qweight": WORD_DTYPES, "qzeros": WORD_DTYPES, "scales": DENSE_DTYPES}


def read_awq(stored: StoredTensors, quant: Settings, module: str, rows: slice | None, cols: slice | None) -> Int4Weight:
    """The module, or the outputs in ``rows`` and inputs in ``cols``.

    quant: the config's quantization settings. Raises UnsupportedModelError for other versions and bits than gemm and 4,
    CheckpointError for tensors that are missing, disagree with one another or with the config, or cut groups.
    """
    group_size = awq_group_size(quant, module, stored.spellings(module, AWQ_FIELDS))
    part = _layout(stored, module, group_size).part(rows, cols)
    first, last = (8 * word for word in part.output_words)
    weight = awq_to_int4(
        stored.read(f"{module}.qweight", part.inputs, part.output_words),
        stored.read(f"{module}.qzeros", part.groups, part.output_words),
        stored.scales(f"{module}.scales", part.groups, (first, last)),
    )
    return weight.rows(part.in_words)


def awq_group_size(quant: Settings, module: str, names: Names) -> int:
    """The group size that the config gives the module, -1 for one group per output. names: the module's spellings.

    Raises UnsupportedModelError for other versions than gemm and other bits than 4.
    """
    settings = module_settings(quant, names)
    version = str(settings.get("version", "gemm")).lower()
    if version != "gemm":
        raise refuse(module, f"method {method_of(quant)}, version {version}")
    check_bits(module, settings, "bits", "w_bit")
    size = group_size_of(settings, "group_size", "q_group_size")
    return -1 if size is None else size


def _layout(stored: StoredTensors, module: str, group_size: int) -> Layout:
    found = {field: stored.shape(f"{module}.{field}", dtypes) for field, dtypes in AWQ_FIELDS.items()}
    check_matrices(module, found)
    inputs, (groups, outputs) = found["qweight"][0], found["scales"]
    words = count_words(outputs)
    check_shapes(module, found, {"qweight": (inputs, words), "qzeros": (groups, words), "scales": (groups, outputs)})
    if outputs % 8:
        raise CheckpointError(f"{module} has {outputs} outputs, which do not fill whole words.", cure=SAME_REVISION)
    return Layout(outputs, inputs, check_groups(module, inputs, groups, group_size, multiple=2))
