"""The checks of chapter 01 accept what is right and give the matching hint for what is not."""

from __future__ import annotations

import pytest

from labkit.lab.exercises.first_kernel import INTENSITIES, check_intensity, check_saxpy

HEAD = 'extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {'
INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
RIGHT = f"{HEAD} {INDEX} if (i < n) y[i] = a * x[i] + y[i]; }}"


@pytest.mark.parametrize(
    "source",
    [
        RIGHT,
        f"{HEAD} {INDEX} if (i >= n) return; y[i] += a * x[i]; }}",
        f"{HEAD} for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)"
        " y[i] = fmaf(a, x[i], y[i]); }",
    ],
)
def test_right_kernels_pass(source: str, seed: int) -> None:
    assert check_saxpy(source, seed).startswith("Right")


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (f"{HEAD} }}", "y is as it was"),
        (f"{HEAD} {INDEX} y[i] = a * x[i] + y[i]; }}", "out-of-bounds.*more threads than elements"),
        (f"{HEAD} {INDEX} if (i <= n) y[i] = a * x[i] + y[i]; }}", "out-of-bounds"),
        (f"{HEAD} {INDEX} if (i < n) y[i] = a * x[i]; }}", r"y = a \* x \+ y"),
        (f"{HEAD} int i = threadIdx.x; if (i < n && blockIdx.x == 0) y[i] = a * x[i] + y[i]; }}", "Use blockIdx.x"),
        (f"{HEAD} {INDEX} if (i < n) {{ y[i] = a * x[i] + y[i]; ((float*)x)[i] = 0; }} }}", "has changed x"),
        (f"{HEAD} {INDEX} if (i < n) y[i] = a * x[i] + z[i]; }}", 'does not compile(.|\n)*identifier "z" is undefined'),
        (RIGHT.replace(", int n)", ")").replace("i < n", "i < 33"), "is called as in the text"),
        (RIGHT.replace("saxpy", "axpy"), "saxpy"),
    ],
)
def test_wrong_kernels_get_a_hint(source: str, hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_saxpy(source)


def test_intensities() -> None:
    right = {name: value for name, (value, _) in INTENSITIES.items()}
    assert check_intensity(right).startswith("Right")
    assert check_intensity({name: 1.03 * value for name, value in right.items()}).startswith("Right")


@pytest.mark.parametrize("name", list(INTENSITIES))
def test_each_wrong_intensity_gets_its_own_hint(name: str) -> None:
    answers = {other: value for other, (value, _) in INTENSITIES.items()}
    with pytest.raises(AssertionError, match=f"^{name}: not"):
        check_intensity({**answers, name: 1.2 * answers[name]})
    with pytest.raises(AssertionError, match=f"No answer yet for {name}"):
        check_intensity({key: value for key, value in answers.items() if key != name})
