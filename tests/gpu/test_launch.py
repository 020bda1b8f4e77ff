"""Launches on a GPU: on torch's tensors and streams, into graphs, from threads, and the refusals before them.

The kernels are those of tests/gpu/probe; the shipped ones are in test_ops.py.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.probe import probe

from labkit.device import Out, executor_for, use_executor
from labkit.errors import KernelArgumentError, KernelLaunchError

pytestmark = pytest.mark.usefixtures("probes")
SLOW = 20_000_000  # clock cycles: about ten milliseconds


@pytest.fixture
def count(seed: int) -> int:
    return random.randrange(1, 100_000)


def blocks(count: int) -> int:
    return -(-count // 256)


def test_runs_in_place_between_torch_operations(count: int) -> None:
    x, y = torch.randn(count, device="cuda"), torch.full((count + 7,), 5.0, device="cuda")
    address = y.data_ptr()
    x.mul_(2)
    probe("scale").launch(blocks(count), 256, [x, y, 0.5, count])
    y.add_(1)
    assert torch.equal(y[:count], 0.5 * x + 1) and torch.equal(y[count:], torch.full((7,), 6.0, device="cuda"))
    assert y.data_ptr() == address


def test_simulator_and_gpu_agree_bit_for_bit(count: int) -> None:
    count = min(count, 3000)
    x, factor = torch.randn(count), random.uniform(-3, 3)
    results = []
    for device in ("cpu", "cuda"):
        y = torch.empty(count, device=device)
        probe("scale").launch(blocks(count), 256, [x.to(device), Out(y), factor, count])
        results.append(y.cpu())
    assert torch.equal(*results)


@pytest.mark.parametrize("null_stream", [True, False], ids=["null stream", "side stream"])
def test_order_on_a_stream(null_stream: bool, seed: int) -> None:
    """The kernel waits for torch's work before it, and torch's work behind it waits for the kernel."""
    stream = torch.cuda.default_stream() if null_stream else torch.cuda.Stream()
    assert (stream.cuda_stream == 0) == null_stream
    flag, value = torch.zeros(1, dtype=torch.int32, device="cuda"), random.randrange(1, 1000)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for step in range(3):
            probe("late").launch(1, 1, [SLOW, flag, value + step])
            seen = flag + 0  # by torch, on the same stream
            flag.zero_()
            scaled = torch.empty(1, device="cuda")
            probe("scale").launch(1, 32, [seen.float(), scaled, 2.0, 1])
            assert scaled.item() == 2 * (value + step)


def test_two_streams_run_side_by_side() -> None:
    """A launch goes to the current stream: work of another stream does not wait for it."""
    side, flag = torch.cuda.Stream(), torch.zeros(1, dtype=torch.int32, device="cuda")
    other, finished = torch.cuda.Stream(), torch.cuda.Event()
    probe("late").launch(1, 1, [1, flag, 0])
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        probe("late").launch(1, 1, [50 * SLOW, flag, 1])
    with torch.cuda.stream(other):
        probe("late").launch(1, 1, [1, torch.zeros(1, dtype=torch.int32, device="cuda"), 1])
        finished.record()
    finished.synchronize()
    assert not side.query(), "the slow kernel is still running"
    side.synchronize()
    assert flag.item() == 1


def test_binding_prepares_and_reads_memory_when_called(count: int) -> None:
    x, y = torch.randn(count, device="cuda"), torch.empty(count, device="cuda")
    run = probe("scale").bind(blocks(count), 256, [x, Out(y), -1.5, count])
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            x.normal_()
            run()
            expected = -1.5 * x
            assert torch.equal(y, expected)
        stream.synchronize()


def test_bound_tensors_stay_alive(count: int) -> None:
    y = torch.empty(count, device="cuda")
    run = probe("scale").bind(blocks(count), 256, [torch.ones(count, device="cuda"), Out(y), 3.0, count])
    rubbish = [torch.zeros(count, device="cuda") for _ in range(20)]  # would take the place of the tensor of ones
    run()
    assert torch.equal(y, torch.full((count,), 3.0, device="cuda")) and rubbish


@pytest.mark.parametrize("bound", [False, True], ids=["launched", "bound"])
def test_captured_beside_torch_operations(bound: bool, count: int) -> None:
    x, y = torch.randn(count, device="cuda"), torch.empty(count, device="cuda")
    kernel, arguments = probe("scale"), [x, Out(y), 0.25, count]
    run = kernel.bind(blocks(count), 256, arguments)
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
        if bound:
            run()
        else:
            kernel.launch(blocks(count), 256, arguments)
        z = y * y
    for _ in range(3):
        x.normal_()
        expected = (0.25 * (x + 1)).square()
        graph.replay()
        assert torch.equal(z, expected)


def test_the_very_first_launch_may_be_captured(count: int) -> None:
    """Loading the module is no work of the stream."""
    x, y = torch.randn(count, device="cuda"), torch.zeros(count, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        probe("scale", fresh=True).launch(blocks(count), 256, [x, Out(y), 2.0, count])
    graph.replay()
    assert torch.equal(y, 2 * x)


def test_a_new_thread_may_launch_first(count: int) -> None:
    x, y = torch.randn(count, device="cuda"), torch.empty(count, device="cuda")
    errors: list[BaseException] = []

    def work() -> None:
        try:
            probe("scale").launch(blocks(count), 256, [x, Out(y), 2.0, count])
            torch.cuda.synchronize()
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert not errors and torch.equal(y, 2 * x)


def test_bound_in_one_thread_called_in_many(count: int) -> None:
    x, y = torch.randn(count, device="cuda"), torch.zeros(count, device="cuda")
    run = probe("scale").bind(blocks(count), 256, [x, Out(y), 2.0, count])
    workers = [threading.Thread(target=lambda: [run() for _ in range(200)]) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert torch.equal(y, 2 * x)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_tensors_say_which_gpu(count: int) -> None:
    for index in (1, 0, 1):
        x = torch.randn(count, device=f"cuda:{index}")
        y = torch.empty_like(x)
        probe("scale").launch(blocks(count), 256, [x, Out(y), 2.0, count])
        assert torch.equal(y, 2 * x) and torch.cuda.current_device() == 0
    with pytest.raises(KernelArgumentError, match="lies on cuda:0, others on cuda:1"):
        probe("scale").launch(1, 256, [x, torch.empty(count, device="cuda:0"), 2.0, count])


@pytest.mark.parametrize("kib", [1, 48, 64, 96])
def test_large_shared_memory(kib: int) -> None:
    x = torch.randn(kib * 256, device="cuda")
    y = torch.empty_like(x)
    probe("turn_round").launch(1, 1024, [x, Out(y), x.numel()], kib * 1024)
    assert torch.equal(y, x.flip(0))


def test_gpu_tensors_go_to_the_gpu() -> None:
    x = torch.zeros(1, device="cuda")
    assert executor_for(x) == "cuda"
    with use_executor("sim"):
        assert executor_for(x) == "cuda"
    with use_executor("torch"):
        assert executor_for(x) == "torch"


def test_refused_before_anything_runs() -> None:
    x, y = torch.randn(8, device="cuda"), torch.full((8,), 5.0, device="cuda")
    kernel = probe("scale")
    wrong: list[tuple[Any, Any, list[Any], int, str]] = [
        (1, 8, [x.cpu(), y, 1.0, 8], 0, "lies on cuda:0, others on cpu"),
        (1, 8, [x.half(), y, 1.0, 8], 0, "float16"),
        (1, 8, [x, y.view(2, 4).t(), 1.0, 8], 0, "not contiguous"),
        (1, 8, [x, y, 1.0], 0, "4 arguments"),
        (1, 8, [x, y, 1.0, 2**31], 0, "outside"),
        (1, 8, [x, y, x[0], 8], 0, "is a number"),
        (0, 8, [x, y, 1.0, 8], 0, "the grid"),
        (1, 1025, [x, y, 1.0, 8], 0, "the block"),
        (1, (32, 64), [x, y, 1.0, 8], 0, "2048 threads"),
        (1, 8, [x, y, 1.0, 8], 98_305, "shared memory"),
    ]
    for grid, block, arguments, shared, told in wrong:
        with pytest.raises(KernelArgumentError, match=told):
            kernel.launch(grid, block, arguments, shared)
        with pytest.raises(KernelArgumentError, match=told):
            kernel.bind(grid, block, arguments, shared)
    torch.cuda.synchronize()
    assert torch.equal(y, torch.full((8,), 5.0, device="cuda"))


def test_what_the_driver_refuses_names_kernel_and_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own limits are checked before; so the refusal is made by a block larger than any GPU takes."""
    from labkit.device import cuda

    x = torch.zeros(8, device="cuda")
    good = probe("scale").prepare(1, 8, [x, x, 1.0, 8])
    bad = good._replace(block=(4096, 1, 1))
    with pytest.raises(KernelLaunchError, match=r"probe/1_probe:scale was not launched .*4096"):
        cuda.launch(bad)
    probe("scale").launch(1, 8, [x, x, 1.0, 8])
    torch.cuda.synchronize()


def test_cost_of_a_launch_is_printed() -> None:
    script = Path(__file__).with_name("launch_cost.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert "prepared" in done.stdout
