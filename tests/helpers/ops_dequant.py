"""Checks of dequant_int4: bit for bit what one rounding to half gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from helpers.accuracy import Shape
from torch import Tensor

from labkit.ops import dequant_int4
from labkit.quant.int4 import Form, Int4Weight
from labkit.quant.pack import TILE, pack

SMALL: dict[str, list[Shape]] = {
    # outputs, inputs, group, form, tiles (None: all)
    "dequant_int4": [
        (64, 384, 128, "scale_zero", None),
        (33, 192, 64, "scale_zero", None),
        (24, 96, 32, "scale_bias", None),
        (100, 320, 32, "scale_zero", (1, 4)),
        (40, 64, 64, "scale_bias", (1, 2)),
        (96, 128, 128, "scale_bias", (0, 1)),
    ],
}
LARGE: dict[str, list[Shape]] = {
    "dequant_int4": [
        (8704, 5120, 128, "scale_zero", None),
        (5120, 8704, 128, "scale_zero", (3, 100)),
        (5120, 3072, 32, "scale_zero", None),
        (24, 5120, 64, "scale_zero", None),
        (4999, 576, 32, "scale_bias", (11, 157)),
        (49152, 576, 64, "scale_bias", None),
    ],
}


def random_weight(outputs: int, inputs: int, group: int, form: Form) -> Int4Weight:
    """Any nibble with any scale, of any size and sign; zero points from 0 to 16, and biases of the products' size."""
    q = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
    shape = (outputs, inputs // group)
    scale = torch.randn(shape) * 10 ** torch.empty(shape).uniform_(-6, 2)
    other = torch.randint(0, 17, shape).float() if form == "scale_zero" else scale * torch.randn(shape) * 8
    return Int4Weight.from_nibbles(q, torch.stack((scale, other), dim=-1).half(), form)


def exact_halves(weight: Int4Weight) -> Tensor:
    """fp16 [N, K]: in fp64, where nothing is lost, then rounded once by NumPy."""
    q = weight.unpack().numpy().astype(np.float64).reshape(*weight.groups.shape[:2], -1)
    scale, other = np.split(weight.groups.numpy().astype(np.float64), 2, axis=-1)
    exact = (q - other) * scale if weight.form == "scale_zero" else q * scale + other
    return torch.from_numpy(exact.astype(np.float16)).view(weight.shape)


def check_dequant_int4(rung: str, shape: Shape, device: str) -> None:
    outputs, inputs, group, form, tiles = shape
    weight = random_weight(outputs, inputs, group, form)
    wanted = None if tiles is None else slice(*tiles)
    rows = slice(None) if tiles is None else slice(tiles[0] * TILE, tiles[1] * TILE)
    w = dequant_int4.dequant_int4(pack(weight).to(device), tiles=wanted, rung=rung)
    expected = exact_halves(weight)[rows]
    assert w.shape == expected.shape and torch.equal(w.cpu().view(torch.int16), expected.view(torch.int16))


CHECKS: dict[str, tuple[list[str], Callable[[str, Shape, str], None]]] = {
    "dequant_int4": (dequant_int4.RUNGS, check_dequant_int4)
}
FOLDERS: dict[str, str] = {}
