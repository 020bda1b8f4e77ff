"""The roofline bounds by the lower of its two roofs, and says where its figures come from."""

from __future__ import annotations

import math
import random

import pytest
from helpers.drawings import SVG, root_of, texts

from labkit.lab.roofline import HEIGHT, LABEL, V100, WIDTH, Point, bound, least_time, roofline

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


def test_dots_stay_on_the_roof_and_their_numbers_apart() -> None:
    root = root_of(roofline([Point(f"op {i}", 10 + i / 10, 12) for i in range(6)]))
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in root.iter(f"{SVG}circle")]
    slope = HEIGHT / WIDTH  # a decade up for a decade to the right; five of each show
    (x, y), *others = dots
    assert len(others) == 5
    assert [dot[1] for dot in others] == pytest.approx([y - slope * (dot[0] - x) for dot in others], abs=0.2)
    numbers = [text for text in root.iter(f"{SVG}text") if text.text in "123456" and text.get("font-size") == "11"]
    places = [(float(text.attrib["x"]), float(text.attrib["y"])) for text in numbers]
    assert [place[0] for place in places] == pytest.approx([dot[0] for dot in dots], abs=0.1)
    assert min(math.dist(a, b) for i, a in enumerate(places) for b in places[:i]) >= LABEL - 1


def test_axes_grow_with_the_operations() -> None:
    assert "0.001" in texts(root_of(roofline([Point("sparse", 1, 800)])))


@pytest.mark.parametrize("point", [Point("no work", 0, 8), Point("no traffic", 5, 0)])
def test_points_off_the_axes_are_refused(point: Point) -> None:
    with pytest.raises(ValueError, match="both must be above 0"):
        roofline([point])
