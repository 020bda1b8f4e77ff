"""INT4 modules whose config or tensors were spoiled at random: the right weights or a typed error, nothing else."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.gptq_files import gptq_config
from helpers.one_module import MODULE, write_module
from helpers.uploads import UPLOADS

from labkit.errors import CheckpointError, UnsupportedModelError
from labkit.quant.int4 import Int4Weight

# No "gptq": as quant_method of an AutoRound file it would change how zero points are read, and nothing contradicts it.
SCALARS: list[Any] = [None, True, False, 0, -1, 3, 8, 32, 4.0, "", "x", "4", "quark", "group"]
VALUES: list[Any] = [*SCALARS, [], [1], {}, {"a": 1}, {"(": {}}]
SPOILT_EACH = 40


def spoil_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config with one value, at any depth, replaced or removed."""
    spoilt = copy.deepcopy(config)
    place: Any = spoilt
    while True:
        key = random.choice(list(place))
        if isinstance(place[key], dict) and place[key] and random.random() < 0.8:
            place = place[key]
        elif random.random() < 0.2:
            del place[key]
            return spoilt
        else:
            place[key] = copy.deepcopy(random.choice(VALUES))
            return spoilt


def spoil_tensor(tensor: torch.Tensor) -> torch.Tensor | None:
    """Another shape or dtype, or none of it; all of it still a tensor that safetensors can hold."""
    changes = [
        lambda: None,
        lambda: tensor[:-1],
        lambda: tensor[..., :1],
        lambda: tensor.flatten(),
        lambda: tensor.unsqueeze(0),
        lambda: torch.cat([tensor, tensor]),
        lambda: tensor.to(torch.int64),
        lambda: tensor.float(),
        lambda: tensor[:0],
        lambda: tensor.T if tensor.ndim == 2 else tensor,
    ]
    spoilt = random.choice(changes)()
    return None if spoilt is None else spoilt.contiguous()


def read(directory: Path, fields: dict[str, torch.Tensor | None], config: dict[str, Any]) -> Int4Weight | str:
    """The weight, or the text of the error, which must be one of the loader's two and have a cure."""
    try:
        weight = write_module(directory, fields, config).linear(MODULE)
    except (CheckpointError, UnsupportedModelError) as error:
        assert error.cure and len(error.message) > 20
        return str(error)
    assert isinstance(weight, Int4Weight)
    return weight


@pytest.mark.parametrize("name", UPLOADS)
def test_spoilt_configs(tmp_path: Path, name: str, seed: int) -> None:
    """What is still read is what was written: no setting that fits the tensors is misunderstood for another.

    The settings that say how zero points are stored are no part of this: nothing in the file contradicts them.
    """
    upload = UPLOADS[name]
    fields, exact = upload.pack(torch.randn(24, 256), upload.group)
    untouched = {"sym", "packing_format", "checkpoint_format", "meta"}
    refused = 0
    for number in range(SPOILT_EACH):
        config = spoil_config(dict(upload.config))
        if any(config.get(key) != upload.config.get(key) for key in untouched):
            continue
        weight = read(tmp_path / str(number), dict(fields), config)
        refused += isinstance(weight, str)
        assert isinstance(weight, str) or torch.equal(weight.dequantize(), exact)
    assert refused


@pytest.mark.parametrize("name", UPLOADS)
def test_spoilt_tensors(tmp_path: Path, name: str, seed: int) -> None:
    upload = UPLOADS[name]
    fields, exact = upload.pack(torch.randn(24, 256), upload.group)
    for number in range(SPOILT_EACH):
        key = random.choice(list(fields))
        spoilt = spoil_tensor(fields[key])
        if spoilt is not None and spoilt.shape == fields[key].shape and spoilt.dtype == fields[key].dtype:
            continue
        weight = read(tmp_path / str(number), {**fields, key: spoilt}, dict(upload.config))
        harmless = isinstance(weight, Int4Weight) and torch.equal(weight.dequantize(), exact)
        assert isinstance(weight, str) or harmless, f"{key} {None if spoilt is None else (spoilt.shape, spoilt.dtype)}"
        assert harmless or MODULE in str(weight)


def test_a_symmetric_file_without_sym_is_read_by_its_zero_points(tmp_path: Path, seed: int) -> None:
    upload = UPLOADS["Qwen 3.5 GPTQ-Int4"]
    fields, exact = upload.pack(torch.randn(24, 256), upload.group)
    config = gptq_config(128)
    del config["sym"]
    weight = read(tmp_path, dict(fields), config)
    assert isinstance(weight, Int4Weight) and torch.equal(weight.dequantize(), exact)
