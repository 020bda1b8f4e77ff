"""The doctor's line about linear layers: defaults, a table, one that is out of date, one that cannot be used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.tuning import some_table

from labkit.lab.doctor_check import Check, Status
from labkit.lab.doctor_gpus import Gpu
from labkit.lab.doctor_tuning import Tuning, check_tuning, find_tuning
from labkit.ops.linear_candidates import timed_kernels
from labkit.ops.tuning_table import store_table, table_path

V100 = Gpu("Tesla V100-SXM2-16GB", (7, 0), 16 * 2**30, "570.86.10")
H200 = Gpu("NVIDIA H200", (9, 0), 141 * 2**30, "580.65.06")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))


def checked(*gpus: Gpu) -> Check:
    return check_tuning(gpus, {gpu.name: find_tuning(gpu.name) for gpu in gpus})


def test_defaults_say_whose_figures_they_follow() -> None:
    assert "published V100 figures" in check_tuning((), {}).detail and "simulator" in check_tuning((), {}).detail
    for gpu, told in ((V100, "published V100 figures"), (H200, "newer GPUs")):
        check = checked(gpu)
        assert check.status is Status.INFO and gpu.name in check.detail and told in check.detail
        assert "labkit tune" in check.cure


def test_a_table_says_when_it_was_measured() -> None:
    store_table(replace(some_table(V100.name), kernels=timed_kernels()))
    check = checked(V100)
    assert check.status is Status.OK and not check.cure
    assert "2026-11-30" in check.detail and "2 shapes" in check.detail and V100.name in check.detail
    mixed = checked(V100, H200)
    assert mixed.status is Status.INFO and "newer GPUs" in mixed.detail and "2026-11-30" in mixed.detail


def test_a_table_of_other_kernels_is_out_of_date() -> None:
    store_table(replace(some_table(V100.name), kernels="others"))
    check = checked(V100)
    assert check.status is Status.INFO and "have changed since" in check.detail and "labkit tune" in check.cure


@pytest.mark.parametrize("content", ["", "{}", '{"format": 9}'])
def test_a_table_that_cannot_be_used_is_a_gap(content: str) -> None:
    path = table_path(V100.name)
    path.parent.mkdir()
    path.write_text(content)
    assert find_tuning(V100.name).problem
    check = checked(V100, H200)
    assert check.status is Status.WARN and str(path) in check.detail and "published V100 figures" in check.detail
    assert "delete" in check.cure


def test_a_gpu_that_nobody_looked_up_has_no_table() -> None:
    assert check_tuning((V100,), {}) == check_tuning((V100,), {V100.name: Tuning()})
