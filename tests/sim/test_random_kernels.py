"""Random divergent programs do what each of their threads would do on its own."""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers.random_kernels import random_kernel, run_block

from labkit.sim import run

KERNELS = 24
SHAPES = [(2, 64), (3, 46), (1, 128), (4, 32), (2, 2)]  # threads that shuffle with their neighbour: an even number


def check(seed: int, kernels: int) -> None:
    rng = random.Random(seed)
    programs = [random_kernel(f"k{n}", rng.randrange(2**31)) for n in range(kernels)]
    source = "\n".join(program.cuda for program in programs)
    for program in programs:
        grid, block = rng.choice(SHAPES)
        values = np.random.default_rng(rng.randrange(2**31)).integers(0, 2**32, grid * block).astype(np.uint32)
        expected, total = [], [0]
        for first in range(0, grid * block, block):
            expected += run_block(program, first, values[first : first + block].tolist(), total)
        for order in (None, rng.randrange(100)):
            out, counter = np.zeros(grid * block, np.uint32), np.zeros(1, np.uint32)
            result = run(source, program.name, grid, block, [values, out, counter], shuffle_seed=order)
            assert result.ok, (result, program.cuda)
            assert out.tolist() == expected, program.cuda
            assert counter[0] == total[0] % 2**32, program.cuda


def test_random_kernels(seed: int) -> None:
    check(seed, KERNELS)


@pytest.mark.slow
def test_many_random_kernels(seed: int) -> None:
    for round_ in range(20):
        check(seed + round_, KERNELS)
