"""How large the inputs of a projection are on average, channel by channel: a few are much larger than the others."""

from __future__ import annotations

from torch import Tensor

from labkit.lab.drawing import USED, WARNING, counted, document, line, words
from labkit.lab.picture import SvgPicture

WIDTH, HEIGHT, LEFT, TOP, FOOT = 640, 160, 48, 34, 34  # pixels; WIDTH and HEIGHT of the plot
NAMED = 8  # loudest channels that the text lists


def salient(mean: Tensor, share: float = 0.01) -> list[int]:
    """The channels with the largest ``mean`` [K], loudest first: this share of all, at least one."""
    return mean.topk(max(1, round(share * len(mean)))).indices.tolist()


def channel_bars(mean: Tensor, title: str = "", share: float = 0.01) -> SvgPicture:
    """Draw the mean of |x| of every channel, [K], the loudest ``share`` of them in another colour."""
    loud, median = salient(mean, share), float(mean.median())
    ratio = float(mean.max()) / max(median, 1e-12)
    head = (
        f"{len(mean)} channels, mean of |x|: median {median:.3f}, largest {float(mean.max()):.3f} ({ratio:.1f} times)"
    )
    head = f"{title}: {head}" if title else head
    first = ", ".join(f"{channel} ({float(mean[channel]):.2f})" for channel in mean.topk(min(NAMED, len(mean))).indices)
    alt = f"Bar chart. {head}. The loudest: {first}."
    return SvgPicture(_svg(mean.tolist(), set(loud), head), alt, f"{head}\nloudest: {first}")


def _svg(mean: list[float], loud: set[int], head: str) -> str:
    base, top = TOP + HEIGHT, max(*mean, 1e-12)
    step = WIDTH / len(mean)
    heights = [value / top * HEIGHT for value in mean]
    quiet = "".join(
        f"M{LEFT + (i + 0.5) * step:.1f} {base}v{-height:.1f}" for i, height in enumerate(heights) if i not in loud
    )
    parts = [words(LEFT, 16, head, anchor="start", bold=True, size=11)]
    parts.append(f'<path d="{quiet}" stroke="{USED}" stroke-width="{max(step * 0.8, 0.5):.2f}" fill="none"/>')
    for i in sorted(loud):
        x = LEFT + (i + 0.5) * step
        parts.append(line(x, base, x, base - heights[i], stroke=WARNING, width=max(step, 2)))
    parts.append(line(LEFT, base, LEFT + WIDTH, base))
    parts += [words(LEFT - 6, base - part * HEIGHT, f"{part * top:.2g}", anchor="end", size=10) for part in (0, 0.5, 1)]
    parts.append(words(LEFT, base + 18, f"channel 0 to {len(mean) - 1}; the {_loudest(loud)} marked", anchor="start"))
    return document(LEFT + WIDTH + 12, base + FOOT, parts)


def _loudest(loud: set[int]) -> str:
    return f"{counted(len(loud), 'loudest channel')} {'is' if len(loud) == 1 else 'are'}"
