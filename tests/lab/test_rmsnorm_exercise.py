"""The checks of chapter 03 accept a butterfly and nothing dearer, and traffic right to the byte."""

from __future__ import annotations

import pytest

from labkit.lab.exercises.rmsnorm import check_traffic, check_warp_sum

LOOP = "for (int d = 16; d > 0; d /= 2) value += {}; return value;"


def warp_sum(body: str) -> str:
    return f"__device__ float warp_sum(float value) {{ {body} }}"


BUTTERFLY = LOOP.format("__shfl_xor_sync(0xffffffffu, value, d)")
THROUGH_MEMORY = """
__shared__ float all[64];
all[threadIdx.x] = value;
__syncthreads();
value = 0;
for (int i = 0; i < 32; i++) value += all[threadIdx.x / 32 * 32 + i];
return value;
"""
LONG_WAY = "float sum = 0; for (int i = 0; i < 32; i++) sum += __shfl_sync(0xffffffffu, value, i); return sum;"
DOWN = LOOP.format("__shfl_down_sync(0xffffffffu, value, d)")


@pytest.mark.parametrize("body", [BUTTERFLY, BUTTERFLY.replace("d = 16; d > 0; d /= 2", "d = 1; d < 32; d *= 2")])
def test_butterflies_pass(body: str, seed: int) -> None:
    assert check_warp_sum(warp_sum(body), seed).startswith("Right")


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("return value;", "After which shuffle"),
        (BUTTERFLY.replace("d > 0", "d > 1"), "After which shuffle"),
        (DOWN, "Lane 0 holds the sum, the others do not"),
        (THROUGH_MEMORY, "Registers are enough"),
        (LONG_WAY, "took 32 shuffles"),
        (f"if (threadIdx.x % 32 < 16) {{ {BUTTERFLY} }} return value;", "lanes"),
        ("return valeu;", "does not compile"),
    ],
)
def test_wrong_sums_get_a_hint(body: str, hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_warp_sum(warp_sum(body))


def test_traffic_right_to_the_byte() -> None:
    assert check_traffic(lambda rows, hidden: (2 * rows * hidden + 4 * hidden, 2 * rows * hidden)).startswith("Right")


@pytest.mark.parametrize(
    ("predict", "hint"),
    [
        (lambda rows, hidden: (2 * rows * hidden, 2 * rows * hidden), "the weight once for all rows"),
        (lambda rows, hidden: (2 * rows * hidden + 4 * hidden, 4 * rows * hidden), "y goes out once"),
        (lambda rows, hidden: 0, "Return two numbers"),
    ],
)
def test_wrong_traffic_gets_a_hint(predict: object, hint: str) -> None:
    for words in ("bytes|numbers", hint):  # at first only a question
        with pytest.raises(AssertionError, match=words):
            check_traffic(predict)  # type: ignore[arg-type]
