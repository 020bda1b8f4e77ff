"""The errors in the picture are those of the formats, and the rotation spreads an outlier."""

from __future__ import annotations

import pytest
import torch
from helpers.drawings import root_of, texts

from labkit.lab.kv_error import KINDS, channel_errors, kv_error, round_trip
from labkit.quant.kv import hadamard, quantize_int4, quantize_int8


def keys(seed: int) -> torch.Tensor:
    k = torch.randn(200, 128, generator=torch.Generator().manual_seed(seed))
    k[:, 5] = 30 + k[:, 5]
    return k


def test_round_trips_stay_within_half_a_step(seed: int) -> None:
    k = keys(seed)
    _, scale = quantize_int8(k)
    assert ((round_trip(k, "int8") - k).abs() <= scale.float()[:, None] * 0.51).all()
    _, pairs = quantize_int4(k)
    step = pairs[..., :1].float().expand(-1, -1, 64).flatten(1)
    assert ((round_trip(k, "int4") - k).abs() <= 0.51 * step).all()
    turned = hadamard(round_trip(k, "rotated int4")) - hadamard(k)
    _, pairs = quantize_int4(hadamard(k))
    assert (turned.abs() <= 0.52 * pairs[..., :1].float().expand(-1, -1, 64).flatten(1) + 1e-4).all()


def test_an_outlier_costs_the_others_and_rotation_helps(seed: int) -> None:
    found = {kind: channel_errors(keys(seed), kind) for kind in KINDS}
    assert found["int8"].overall < found["rotated int4"].overall < found["int4"].overall
    plain, turned = found["int4"].channels, found["rotated int4"].channels
    assert plain[:64].mean() > 3 * plain[64:].mean()  # those that share a scale with channel 5
    assert turned.max() < 1.5 * turned.min()


def test_figures_are_root_mean_squares(seed: int) -> None:
    k = keys(seed)
    each = channel_errors(k, "int4")
    error = round_trip(k, "int4") - k
    assert each.overall == pytest.approx(float(error.square().mean() ** 0.5))
    assert each.relative == pytest.approx(float(error.norm() / k.norm()))
    torch.testing.assert_close(each.channels, error.square().mean(0).sqrt())


def test_the_picture(seed: int) -> None:
    picture = kv_error(keys(seed), title="random keys")
    root = root_of(picture)
    assert sum(text.startswith("error of") for text in texts(root)) == 3
    assert picture.text.startswith("random keys: 200 keys of 128 channels; loudest: 5")
    for kind, line in zip(KINDS, picture.text.splitlines()[1:], strict=True):
        each = channel_errors(keys(seed), kind)
        assert line.startswith(kind) and f"rms error {each.overall:.4f}" in line and f"{each.relative:.2%}" in line


def test_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="fp8"):
        round_trip(torch.zeros(2, 64), "fp8")
