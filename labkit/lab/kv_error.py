"""What keys lose in a quantized page, channel by channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.lab.channel_bars import salient
from labkit.lab.drawing import USED, WARNING, document, line, words
from labkit.lab.picture import SvgPicture
from labkit.quant.kv import dequantize_int4, dequantize_int8, hadamard, quantize_int4, quantize_int8

KINDS = ("int8", "int4", "rotated int4")
WIDTH, STRIP, GAP, LEFT, TOP, MARGIN = 620, 64, 26, 56, 30, 12  # pixels; STRIP: height of one plot


@dataclass(frozen=True)
class ChannelErrors:
    """Root mean square errors of a round trip: of each channel [D], of all, and relative to the keys."""

    kind: str
    channels: Tensor
    overall: float
    relative: float


def round_trip(x: Tensor, kind: str) -> Tensor:
    """What comes back of x [..., D] from a page: fp32 [..., D]. "rotated": turned before and back again afterwards.

    Raises ValueError for a kind that is not in KINDS.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is none of {', '.join(KINDS)}")
    if kind == "int8":
        return dequantize_int8(*quantize_int8(x))
    if kind == "int4":
        return dequantize_int4(*quantize_int4(x))
    return hadamard(dequantize_int4(*quantize_int4(hadamard(x))))


def channel_errors(k: Tensor, kind: str) -> ChannelErrors:
    """Of keys k [tokens, D]. Errors as of ``round_trip``."""
    error = round_trip(k, kind) - k.float()
    overall = float(error.square().mean().sqrt())
    return ChannelErrors(kind, error.square().mean(0).sqrt(), overall, float(error.norm() / k.float().norm()))


def kv_error(k: Tensor, title: str = "", kinds: Sequence[str] = KINDS) -> SvgPicture:
    """Draw the size of each channel of k [tokens, D] and below it its error after a round trip, to one scale.

    The loudest 1 % of the channels stand in another colour. Errors as of ``round_trip``.
    """
    size = k.float().square().mean(0).sqrt()
    loud, found = salient(size), [channel_errors(k, kind) for kind in kinds]
    head = f"{k.shape[0]} keys of {k.shape[1]} channels; loudest: {', '.join(map(str, loud))}"
    head = f"{title}: {head}" if title else head
    rows = [f"{each.kind:13} {_figures(each, loud)}" for each in found]
    spoken = "; ".join(" ".join(row.split()) for row in rows)
    alt = f"Errors of keys in quantized pages. {head}. {spoken}."
    return SvgPicture(_svg(size, found, set(loud), head), alt, "\n".join([head, *rows]))


def _figures(each: ChannelErrors, loud: Sequence[int]) -> str:
    quiet = torch.ones(len(each.channels), dtype=torch.bool)
    quiet[list(loud)] = False
    parts = each.overall, float(each.channels[list(loud)].mean()), float(each.channels[quiet].mean())
    figures = "rms error {:.4f} (loud channels {:.4f}, others {:.4f})".format(*parts)
    return f"{figures}, {each.relative:.2%} of the keys"


def _svg(size: Tensor, found: Sequence[ChannelErrors], loud: set[int], head: str) -> str:
    parts = [words(LEFT, 12, head, anchor="start", bold=True, size=11)]
    parts += _strip(TOP, size.tolist(), float(size.max()), loud, "size of the channel, root mean square")
    top = max(float(each.channels.max()) for each in found)
    for i, each in enumerate(found, 1):
        label = f"error of {each.kind}: {each.relative:.2%} of the keys"
        parts += _strip(TOP + i * (STRIP + GAP), each.channels.tolist(), top, loud, label)
    return document(LEFT + WIDTH + MARGIN, TOP + (len(found) + 1) * (STRIP + GAP) + MARGIN, parts)


def _strip(y: float, values: Sequence[float], top: float, loud: set[int], label: str) -> list[str]:
    base, step = y + STRIP, WIDTH / len(values)
    heights = [value / max(top, 1e-12) * STRIP for value in values]
    bars = "".join(f"M{LEFT + (i + 0.5) * step:.1f} {base}v{-h:.1f}" for i, h in enumerate(heights) if i not in loud)
    parts = [f'<path d="{bars}" stroke="{USED}" stroke-width="{max(0.8 * step, 0.5):.2f}" fill="none"/>']
    for i in sorted(loud):
        x = LEFT + (i + 0.5) * step
        parts.append(line(x, base, x, base - heights[i], stroke=WARNING, width=max(step, 3)))
    parts += [words(LEFT - 6, base - part * STRIP, f"{part * top:.2g}", anchor="end", size=9) for part in (0, 1)]
    return [*parts, line(LEFT, base, LEFT + WIDTH, base), words(LEFT, base + 11, label, anchor="start", size=10)]
