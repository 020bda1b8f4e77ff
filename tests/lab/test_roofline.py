"""The roofline bounds by the lower of its two roofs, and says where its figures come from."""

from __future__ import annotations

import random

import pytest
from helpers.drawings import SVG, root_of, texts

from labkit.lab.roofline import V100, Point, bound, least_time, roofline

COPY = Point("double", 1, 8)
PRODUCT = Point("matrix product", 2 * 4096**3, 3 * 2 * 4096**2, "tensor", "formula")


def test_ridges_of_the_v100() -> None:
    assert V100.ridge("fp32") == pytest.approx(17.4, abs=0.1)
    assert V100.ridge("tensor") == pytest.approx(138.9, abs=0.1)


def test_memory_bounds_what_computes_little_for_each_byte() -> None:
    assert bound(COPY) == "memory" and bound(PRODUCT) == "tensor"
    assert V100.attainable(COPY.intensity, "fp32") == 900e9 / 8
    assert V100.attainable(PRODUCT.intensity, "tensor") == 125e12


def test_least_time_is_that_of_the_slower_part(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(50):
        point = Point("op", 10 ** draw.uniform(3, 15), 10 ** draw.uniform(3, 12), draw.choice(["fp32", "tensor"]))
        rate = V100.attainable(point.intensity, point.unit)
        assert point.flops / least_time(point) == pytest.approx(rate)


def test_picture_numbers_the_operations_in_order_of_intensity() -> None:
    picture = roofline([PRODUCT, COPY])
    rows = picture.text.splitlines()
    assert rows[1].split()[:3] == ["1", "double", "0.125"] and rows[2].split()[:2] == ["2", "matrix"]
    assert "modelled" in rows[0] and "data sheet" in rows[-1]
    assert rows[1].endswith("memory; counted by the simulator") and rows[2].endswith("tensor arithmetic; formula")
    assert "double: 0.125 FLOP/byte, bound by memory" in picture.alt
    assert len(list(root_of(picture).iter(f"{SVG}circle"))) == 2


def test_dots_do_not_cover_each_other() -> None:
    root = root_of(roofline([Point(f"op {i}", 10 + i / 10, 12) for i in range(6)]))
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in root.iter(f"{SVG}circle")]
    gaps = [(a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 for i, a in enumerate(dots) for b in dots[:i]]
    assert min(gaps) >= (2 * 9) ** 2 - 1


def test_axes_grow_with_the_operations() -> None:
    assert "0.001" in texts(root_of(roofline([Point("sparse", 1, 800)])))


@pytest.mark.parametrize("point", [Point("no work", 0, 8), Point("no traffic", 5, 0)])
def test_points_off_the_axes_are_refused(point: Point) -> None:
    with pytest.raises(ValueError, match="both must be above 0"):
        roofline([point])
