"""The roofline: how fast an operation can be at best, by how much it computes for each byte that it moves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.lab.drawing import EMPTY, document, line, words
from labkit.lab.picture import SvgPicture
from labkit.sim.counters import Counters
from labkit.sim.flops import flops

WIDTH, HEIGHT, LEFT, TOP, MARGIN, ROW = 560, 300, 70, 36, 12, 22  # pixels; WIDTH and HEIGHT of the plot
RADIUS, LABEL = 5, 18  # pixels: of a dot, and between numbers


@dataclass(frozen=True)
class Device:
    """Peak rates from a data sheet: bytes/s of the memory, FLOP/s by arithmetic unit. source: where they stand."""

    name: str
    bandwidth: float
    peaks: dict[str, float]
    source: str

    def ridge(self, unit: str) -> float:
        """FLOP per byte at which the memory and the unit are equally busy."""
        return self.peaks[unit] / self.bandwidth

    def attainable(self, intensity: float, unit: str) -> float:
        """FLOP/s at most: min(peak, intensity times bandwidth) (Williams, Waterman, Patterson, CACM 52(4), 2009)."""
        return min(self.peaks[unit], intensity * self.bandwidth)


V100 = Device(
    name="V100 SXM2",
    bandwidth=900e9,
    peaks={"fp32": 15.7e12, "tensor": 125e12},
    source="NVIDIA Tesla V100 data sheet",
)


@dataclass(frozen=True)
class Point:
    """An operation: what it computes and moves, on which unit, and how these two figures were found."""

    name: str
    flops: float
    nbytes: float
    unit: str = "fp32"
    origin: str = "counted by the simulator"

    @property
    def intensity(self) -> float:
        """FLOP per byte of DRAM traffic."""
        return self.flops / self.nbytes


def counted_point(name: str, counters: Counters, unit: str = "fp32") -> Point:
    """The operation whose run on the simulator gave these counters."""
    return Point(name, flops(counters), counters.dram_read_bytes + counters.dram_write_bytes, unit)


def bound(point: Point, device: Device = V100) -> str:
    """What limits it: "memory" left of the ridge, the name of the unit right of it."""
    return "memory" if point.intensity < device.ridge(point.unit) else point.unit


def least_time(point: Point, device: Device = V100) -> float:
    """Seconds at least, if the device reached its data sheet."""
    return max(point.nbytes / device.bandwidth, point.flops / device.peaks[point.unit])


def roofline(points: Sequence[Point], device: Device = V100) -> SvgPicture:
    """Draw the roofs of the device and put the operations on them, numbered in order of intensity.

    All of it is modelled: nothing here says how fast a kernel is, only how fast it could be.
    Raises ValueError for an operation without bytes or FLOP, which has no place on a logarithmic axis.
    """
    for point in points:
        if point.flops <= 0 or point.nbytes <= 0:
            raise ValueError(f"{point.name}: {point.flops:g} FLOP and {point.nbytes:g} bytes; both must be above 0")
    ordered = sorted(points, key=lambda point: point.intensity)
    title = f"Roofline of a {device.name} (modelled from its data sheet)"
    facts = "; ".join(_in_words(point, device) for point in ordered)
    text = "\n".join([title, *_table(ordered, device), f"Peaks: {_peaks(device)}. Source: {device.source}."])
    return SvgPicture(svg=_svg(ordered, device, title), alt=f"{title}. {facts}.", text=text)


def _in_words(point: Point, device: Device) -> str:
    return f"{point.name}: {_short(point.intensity)} FLOP/byte, bound by {_bound_words(point, device)}"


def _short(intensity: float) -> str:
    return f"{intensity:.0f}" if intensity >= 100 else f"{intensity:.3g}"


def _bound_words(point: Point, device: Device) -> str:
    limit = bound(point, device)
    return limit if limit == "memory" else f"{limit} arithmetic"


def _peaks(device: Device) -> str:
    units = (f"{unit} {peak / 1e12:.4g} TFLOP/s" for unit, peak in device.peaks.items())
    return ", ".join([f"memory {device.bandwidth / 1e9:.0f} GB/s", *units])


def _table(points: Sequence[Point], device: Device) -> list[str]:
    width = max([len(point.name) for point in points], default=0)
    rows = []
    for number, point in enumerate(points, 1):
        rate = device.attainable(point.intensity, point.unit) / 1e12
        row = f"{number:2} {point.name:{width}} {_short(point.intensity):>9} FLOP/byte  at most {rate:7.3f} TFLOP/s"
        rows.append(f"{row}  {_bound_words(point, device)}; {point.origin}")
    return rows


class _Axes:
    """Log-log axes: whole decades that hold the roofs and all points."""

    def __init__(self, points: Sequence[Point], device: Device) -> None:
        ridges = [device.ridge(unit) for unit in device.peaks]
        places = [point.intensity for point in points] + [0.1, 10 * max(ridges)]
        self.x0, self.x1 = math.floor(math.log10(min(places))), math.ceil(math.log10(max(places)))
        self.y0 = math.floor(math.log10(device.bandwidth) + self.x0)
        self.y1 = math.ceil(math.log10(max(device.peaks.values())))

    def x(self, intensity: float) -> float:
        return LEFT + WIDTH * (math.log10(intensity) - self.x0) / (self.x1 - self.x0)

    def y(self, rate: float) -> float:
        return TOP + HEIGHT * (self.y1 - math.log10(rate)) / (self.y1 - self.y0)


def _svg(points: Sequence[Point], device: Device, title: str) -> str:
    axes = _Axes(points, device)
    parts = [words(LEFT, 16, title, anchor="start", bold=True), *_grid(axes), *_roofs(axes, device)]
    parts += _dots(points, axes, device)
    top = TOP + HEIGHT + 64
    parts += [_legend_row(number, point, device, top + (number - 1) * ROW) for number, point in enumerate(points, 1)]
    parts.append(words(MARGIN, top + len(points) * ROW, f"Peaks: {_peaks(device)} ({device.source})", anchor="start"))
    return document(LEFT + WIDTH + 150, top + (len(points) + 1) * ROW, parts)


def _legend_row(number: int, point: Point, device: Device, y: float) -> str:
    cells = (
        (0, f"{number}  {point.name}"),
        (200, f"{_short(point.intensity)} FLOP/byte"),
        (320, f"≤ {device.attainable(point.intensity, point.unit) / 1e12:.3g} TFLOP/s"),
        (430, f"bound by {_bound_words(point, device)}"),
        (610, point.origin),
    )
    return "".join(words(MARGIN + x, y, text, anchor="start", bold=x == 0) for x, text in cells)


def _grid(axes: _Axes) -> list[str]:
    parts = [f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#444"/>']
    for decade in range(axes.x0, axes.x1 + 1):
        x = axes.x(10**decade)
        parts.append(line(x, TOP, x, TOP + HEIGHT, EMPTY) + words(x, TOP + HEIGHT + 14, f"{10.0**decade:g}"))
    for decade in range(axes.y0, axes.y1 + 1):
        y = axes.y(10**decade)
        parts.append(line(LEFT, y, LEFT + WIDTH, y, EMPTY))
        parts.append(words(LEFT - 6, y, f"{10.0 ** (decade - 12):g}", anchor="end"))
    parts.append(words(LEFT + WIDTH / 2, TOP + HEIGHT + 34, "FLOP for each byte of DRAM traffic"))
    parts.append(words(16, TOP + HEIGHT / 2, "TFLOP/s, at most", turn=-90))
    return parts


def _roofs(axes: _Axes, device: Device) -> list[str]:
    start = 10.0**axes.x0
    parts = []
    for unit, peak in device.peaks.items():
        ridge = device.ridge(unit)
        parts.append(line(axes.x(ridge), axes.y(peak), LEFT + WIDTH, axes.y(peak), "#0072b2", 2))
        parts.append(words(LEFT + WIDTH + 6, axes.y(peak), f"{unit} {peak / 1e12:.4g}", anchor="start"))
        parts.append(line(axes.x(ridge), axes.y(peak), axes.x(ridge), TOP + HEIGHT, "#0072b2", 1, "3 4"))
    highest = max(device.peaks.values())
    foot = axes.y(start * device.bandwidth)
    parts.append(line(LEFT, foot, axes.x(highest / device.bandwidth), axes.y(highest), "#0072b2", 2))
    return parts


def _dots(points: Sequence[Point], axes: _Axes, device: Device) -> list[str]:
    """A dot on the roof and its number below; a number that would cover another hangs deeper, on a thread."""
    parts: list[str] = []
    taken: list[tuple[float, float]] = []
    for number, point in enumerate(points, 1):
        x, roof = axes.x(point.intensity), axes.y(device.attainable(point.intensity, point.unit))
        y = roof + LABEL
        while any(math.hypot(x - a, y - b) < LABEL for a, b in taken):
            y += LABEL / 2
        taken.append((x, y))
        dot = f'<circle cx="{x:.1f}" cy="{roof:.1f}" r="{RADIUS}" fill="#f0e442" stroke="#444"/>'
        thread = line(round(x, 1), roof, round(x, 1), round(y - LABEL / 2, 1))
        parts.append(thread + dot + words(round(x, 1), round(y, 1), str(number), size=11, bold=True))
    return parts
