"""Broken kernels are noticed: each barrier, guard, bound, mask and fence of the shipped kernels deleted in turn."""

from __future__ import annotations

import pytest
from mutants import OPERATIONS, survey


@pytest.mark.slow
@pytest.mark.parametrize("folder", OPERATIONS)
def test_mutants_are_noticed(folder: str, seed: int) -> None:
    """By a finding of the simulator or by a wrong result; the few that behave as the original are listed by name."""
    found = survey([folder])
    assert len(found) >= 3
    survivors = [mutant for mutant, what in found if what == "survives"]
    assert not [str(mutant) for mutant in survivors if not mutant.equivalent]
    assert not [str(mutant) for mutant, what in found if mutant.equivalent and what.startswith("wrong")]
