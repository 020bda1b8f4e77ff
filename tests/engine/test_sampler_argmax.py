"""The one argmax of a step: taken on the logits' device, and only where a row's token is simply that."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import SamplingParams
from labkit.engine.sampler import SampledToken, SampleRequest, sample
from labkit.errors import RequestError


def request(**settings: Any) -> SampleRequest:
    return SampleRequest(SamplingParams(**settings), [], [], seed=0)


class Calls(TorchDispatchMode):
    """Names of the operations that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("greedy", [[], [0], [1, 2]])
def test_the_argmax_is_taken_only_for_rows_that_it_answers(greedy: list[int], seed: int) -> None:
    """Nor for a greedy row that is shaped; rows that are not finite are found all the same."""
    rows = 2 * torch.randn(5, 50)
    rows[3, 7] = math.nan
    biased = request(temperature=0, logit_bias={3: 99.0})
    wishes = [request(temperature=0 if r in greedy else 0.7) for r in range(4)] + [biased]
    with Calls() as calls:
        results = sample(rows, wishes, num_valid=50)
    assert sum("argmax" in name for name in calls.names) == bool(greedy)
    assert sum("aminmax" in name for name in calls.names) == 1
    assert isinstance(results[3], RequestError) and results[4] == SampledToken(3)
    alone = [sample(rows[r : r + 1], [wishes[r]], num_valid=50)[0] for r in range(3)]
    assert results[:3] == alone and all(results[r] == SampledToken(int(rows[r].argmax())) for r in greedy)
