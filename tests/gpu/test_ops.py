"""Every rung of every kernel ladder on the GPU, at real sizes, against fp64."""

from __future__ import annotations

import pytest
from helpers.ops import LARGE, SMALL, Shape, case_id, cases, check


@pytest.mark.parametrize(("op", "rung", "shape"), [*cases(SMALL), *cases(LARGE)], ids=case_id)
def test_rung_on_the_gpu(op: str, rung: str, shape: Shape, seed: int) -> None:
    check(op, rung, shape, "cuda")
