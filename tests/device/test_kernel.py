"""Kernels launched on the simulator: the same code path as on a GPU up to the executor."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labkit.device import Kernel, Out
from labkit.device.nvrtc import find_nvrtc
from labkit.device.sim_executor import recorded_launches, simulated_with
from labkit.errors import KernelArgumentError, KernelBuildError, KernelLaunchError
from labkit.sim.options import Options

pytestmark = [
    pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here"),
    pytest.mark.usefixtures("operations"),
]


def scale(rung: str = "1_plain", **macros: int) -> Kernel:
    return Kernel("scale", rung, "scale", {"WIDTH": 1, **macros})


def test_launch_runs_in_place(seed: int) -> None:
    count, factor = random.randrange(1, 2000), random.uniform(-4, 4)
    x, y = torch.randn(count), torch.full((count + 5,), 7.0)
    scale().launch(-(-count // 256), 256, [x, y, factor, count])
    expected = 2 * x * torch.tensor(factor, dtype=torch.float32)
    assert torch.equal(y[:count], expected) and torch.equal(y[count:], torch.full((5,), 7.0))


def test_bound_launch_sees_what_is_in_memory_when_called(seed: int) -> None:
    x, y = torch.randn(64), torch.zeros(64)
    run = scale().bind((1, 1, 1), (64,), [x, Out(y), 1.0, 64])
    for _ in range(2):
        x.normal_()
        run()
        assert torch.equal(y, 2 * x)


def test_numbers_become_the_types_of_their_parameters(seed: int) -> None:
    value = random.randrange(-2000, 2000)
    y = torch.zeros(32, dtype=torch.float16)
    Kernel("scale", "1_plain", "fill", {"WIDTH": 1}).launch(1, 32, [Out(y), 32, value, True, None])
    assert torch.equal(y, torch.full((32,), float(value + 1), dtype=torch.float16))


def test_findings_are_errors() -> None:
    x, y = torch.zeros(100), torch.zeros(100)
    with pytest.raises(KernelLaunchError, match=r"scale/1_plain:scale on the simulator: out-of-bounds.*line 11"):
        scale().launch(1, 256, [x, y, 1.0, 101])
    with pytest.raises(KernelLaunchError, match="unwritten-output"):
        scale().launch(1, 256, [x, Out(y), 1.0, 99])


def test_recorded_launches_go_on_and_are_counted() -> None:
    x, y = torch.zeros(100), torch.zeros(100)
    with recorded_launches() as results:
        scale().launch(1, 256, [x, y, 1.0, 101])
        scale("2_same").launch(1, 256, [x, Out(y), 1.0, 100])
    assert {finding.kind for finding in results[0].findings} == {"out-of-bounds"}
    assert results[1].ok and results[1].counters is not None
    assert results[1].counters.global_store.sectors == 13  # of 32 bytes, for 100 floats
    assert "scale/2_same.cu" in results[1].program.file and "y[i] = twice" in results[1].annotated()
    with pytest.raises(KernelLaunchError):
        scale().launch(1, 256, [x, y, 1.0, 101])


def test_options_reach_the_simulator() -> None:
    x, y = torch.zeros(100), torch.zeros(100)
    with simulated_with(Options(checks=False, races=False, counters=False)):
        scale().launch(1, 256, [x, Out(y), 1.0, 99])  # nobody looks at the element that is not written


@pytest.mark.parametrize(
    ("grid", "block", "shared", "told"),
    [
        (0, 32, 0, r"the grid \(0, 1, 1\)"),
        ((1, 65_536), 32, 0, "the grid"),
        ((1, 1, 1, 1), 32, 0, "the grid is"),
        (1.5, 32, 0, "the grid is"),
        ("4", 32, 0, "the grid is"),
        ((), 32, 0, "the grid is"),
        (1, (8, 8, 65), 0, "the block"),
        (1, 257, 0, "257 threads, more than the 256 that its launch bounds allow"),
        (1, (16, 32), 0, "512 threads"),
        (1, 32, 98_305, "shared memory"),
        (1, 32, -1, "shared memory"),
    ],
)
def test_shapes_that_are_refused(grid: Any, block: Any, shared: int, told: str) -> None:
    x, y = torch.zeros(8), torch.full((8,), 5.0)
    with pytest.raises(KernelArgumentError, match=told) as caught:
        scale().launch(grid, block, [x, y, 1.0, 8], shared)
    assert "scale/1_plain:scale" in str(caught.value) and caught.value.cure
    assert torch.equal(y, torch.full((8,), 5.0)), "nothing ran"


def test_arguments_are_checked_before_anything_runs() -> None:
    x, y = torch.zeros(8), torch.full((8,), 5.0)
    for arguments, told in (
        ([x, y, 1.0], "4 arguments"),
        ([x.double(), y, 1.0, 8], "float64"),
        ([x, y, 1.0, 2**31], "outside"),
        ([x.to("meta"), y.to("meta"), 1.0, 8], "not on meta"),
    ):
        with pytest.raises(KernelArgumentError, match=told):
            scale().launch(1, 8, arguments)
    assert torch.equal(y, torch.full((8,), 5.0))


def test_kernels_are_values() -> None:
    assert scale() == scale(WIDTH=1) != scale(WIDTH=2)
    assert hash(scale()) == hash(scale(WIDTH=1))
    assert str(scale()) == "scale/1_plain:scale"
    with pytest.raises(TypeError):
        scale().macros["WIDTH"] = 3  # type: ignore[index]


def test_kernels_are_what_the_compiler_sees() -> None:
    text, number, fraction = (Kernel("scale", "1_plain", "scale", {"WIDTH": width}) for width in ("8", 8, 8.0))
    assert text == number != fraction
    assert number.facts is text.facts is not fraction.facts


@pytest.mark.parametrize("changed", ["scale/1_plain.cu", "common/twice.cuh"])
def test_an_edited_source_is_compiled_again(operations: Path, changed: str) -> None:
    """In the same process, for kernels that were made before the edit as for later ones; bound launches stay."""
    x, y = torch.ones(8), torch.zeros(8)
    kernel = scale()
    bound = kernel.bind(1, 32, [x, y, 1.0, 8])
    bound()
    assert y[0] == 2
    path = operations / changed
    old, new = ("twice(x[i])", "100 * x[i]") if changed.endswith(".cu") else ("2.0f * x", "100.0f * x")
    path.write_text(path.read_text().replace(old, new))
    for each in (kernel, scale()):
        each.launch(1, 32, [x, y, 1.0, 8])
        assert y[0] == 100
        y.zero_()
    kernel.bind(1, 32, [x, y, 1.0, 8])()
    assert y[0] == 100
    bound()
    assert y[0] == 2


@pytest.mark.parametrize(
    ("op", "rung", "entry", "macros", "told"),
    [
        (None, "1_plain", "scale", {}, "operation"),
        ("scale", ["1_plain"], "scale", {}, "rung"),
        ("scale", "1_plain", 3, {}, "entry"),
        ("scale", "1_plain", "scale", None, "macros are None"),
        ("scale", "1_plain", "scale", {5: 1}, "macros"),
        ("scale", "1_plain", "scale", {"WIDTH": None}, "WIDTH"),
        ("scale", "1_plain", "scale", {"A B": 1}, "A B"),
    ],
)
def test_kernels_of_nothing_are_refused_when_made(op: Any, rung: Any, entry: Any, macros: Any, told: str) -> None:
    with pytest.raises(KernelBuildError, match=told):
        Kernel(op, rung, entry, macros)


@pytest.mark.parametrize("rung", ["", "../scale/1_plain", "./1_plain", "x/../1_plain", "1_plain\0"])
def test_a_rung_is_a_name_and_no_path(rung: str) -> None:
    with pytest.raises(KernelBuildError, match=r"has no rung.*1_plain, 2_same"):
        scale(rung).launch(1, 32, [torch.zeros(1)])


def test_a_null_pointer_is_called_one() -> None:
    with pytest.raises(KernelLaunchError, match="through a null pointer"):
        scale().launch(1, 32, [None, torch.zeros(8), 1.0, 8])


@pytest.mark.parametrize("factor", [np.array([1.0]), np.array([1.0, 2.0]), np.complex64(1), 1j, "1", None])
def test_what_is_no_real_number_is_refused(factor: Any) -> None:
    with pytest.raises(KernelArgumentError, match="factor"):
        scale().launch(1, 32, [torch.zeros(8), torch.zeros(8), factor, 8])


def test_arguments_come_as_a_list() -> None:
    for arguments in (None, torch.zeros(4), {1: 2}):
        with pytest.raises(KernelArgumentError, match="the arguments are"):
            scale().launch(1, 32, arguments)  # type: ignore[arg-type]


def test_macros_select_the_build() -> None:
    assert scale(EXTRA=1).image.ptx == scale().image.ptx  # a macro that the source does not use
    with pytest.raises(KernelBuildError, match="-D WIDTH") as caught:
        Kernel("scale", "1_plain", "scale").launch(1, 32, [])
    assert (caught.value.op, caught.value.rung) == ("scale", "1_plain")
    assert "error" in caught.value.log and "-arch=sm_70" in caught.value.options


@pytest.mark.parametrize(
    ("op", "rung", "entry", "told"),
    [
        ("scale", "9_fast", "scale", "1_plain, 2_same"),
        ("scales", "1_plain", "scale", "There are: common, scale|There are: scale"),
        ("scale", "1_plain", "scales", "Kernels in it: .*scale"),
    ],
)
def test_names_that_lead_nowhere_say_what_there_is(op: str, rung: str, entry: str, told: str) -> None:
    with pytest.raises(KernelBuildError, match=told):
        Kernel(op, rung, entry, {"WIDTH": 1}).launch(1, 32, [torch.zeros(1)])


def test_an_installation_without_sources(operations: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit.device import sources

    monkeypatch.undo()
    monkeypatch.setattr(sources, "__file__", str(operations / "nowhere" / "labkit" / "device" / "sources.py"))
    with pytest.raises(KernelBuildError, match="Install labkit again"):
        sources.source_root()


def test_threads_may_launch_at_once(seed: int) -> None:
    tensors = [torch.randn(256) for _ in range(4)]
    outputs = [torch.zeros(256) for _ in tensors]
    kernel = scale()

    def work(index: int) -> None:
        kernel.launch(1, 256, [tensors[index], Out(outputs[index]), 3.0, 256])

    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for x, y in zip(tensors, outputs, strict=True):
        assert torch.equal(y, 2 * x * 3.0)
