"""labkit.sim.run: sources of every form, arguments of every kind, and refusals that name the cure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import labkit.sim
from labkit.errors import KernelArgumentError, KernelBuildError
from labkit.sim import Out, run
from labkit.sim.source import load_program

ADD = """#include <cstdio>
#include <stdint.h>
#ifndef BONUS
#define BONUS 1.0f
#endif
extern "C" __global__ void k(const float* x, float* y, int32_t n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i == 2) printf("x[%d] = %.2f\\n", i, x[i]);
  if (i < n) y[i] = x[i] + BONUS;
}
"""


def test_the_example_of_the_documentation(seed: int) -> None:
    x, y = torch.randn(200), torch.zeros(200)
    result = labkit.sim.run(ADD, name="k", grid=(4, 1, 1), block=(64, 1, 1), args=[x, Out(y), 200])
    assert result.ok and result.findings == [] and torch.equal(y, x + 1)
    assert result.output == f"x[2] = {x[2]:.2f}\n"
    assert result.counters and result.counters.global_store.sectors == 25
    assert repr(result) == "k ran: no findings"


def test_sources_as_text_as_files_and_as_ptx(tmp_path: Path) -> None:
    file, ptx_file = tmp_path / "add.cu", tmp_path / "add.ptx"
    file.write_text(ADD, encoding="utf-8")
    ptx = load_program(ADD).ptx
    ptx_file.write_text(ptx, encoding="utf-8")
    for source in (ADD, file, str(file), ptx, ptx_file):
        y = np.zeros(64, np.float32)
        assert run(source, args=[np.ones(64, np.float32), y, 64]).ok and (y == 2).all()


def test_kernels_that_are_not_extern_c_go_by_their_name() -> None:
    source = ADD.replace('extern "C" ', "") + "__global__ void other(int* x) { *x = 5; }\n"
    y = np.zeros(1, np.int32)
    assert run(source, "other", block=1, args=[y]).ok and y[0] == 5


def test_headers_beside_a_file_and_in_named_folders(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "two.cuh").write_text("#define TWO 2.0f\n", encoding="utf-8")
    (tmp_path / "three.cuh").write_text('#include "two.cuh"\n#define THREE (TWO + 1.0f)\n', encoding="utf-8")
    file = tmp_path / "k.cu"
    file.write_text('#include "three.cuh"\n' + ADD, encoding="utf-8")
    y = np.zeros(64, np.float32)
    args = [np.ones(64, np.float32), y, 64]
    assert run(file, args=args, macros={"BONUS": "THREE"}, include_dirs=[tmp_path / "include"]).ok
    assert (y == 4).all()


def test_findings_name_line_block_and_thread(seed: int) -> None:
    x, y = torch.randn(200), torch.zeros(200)
    result = run(ADD, grid=4, args=[x, Out(y), 256])
    assert {(f.kind, f.line, f.block, f.thread) for f in result.findings} == {("out-of-bounds", 9, 3, 8)}
    assert sum(f.count for f in result.findings) == 2 * 56
    assert not result.ok and "out-of-bounds: line 9, thread 8 of block 3" in repr(result)
    assert result.to_json()["findings"][0]["line"] == 9


def test_an_output_that_is_not_filled_is_told(seed: int) -> None:
    result = run(ADD, grid=4, args=[torch.randn(256), Out(torch.zeros(256)), 255])
    assert [f.kind for f in result.findings] == ["unwritten-output"]
    assert run(ADD, grid=4, args=[torch.randn(256), Out(torch.zeros(256)), 255], checks=False).ok


def test_counting_can_be_left_out() -> None:
    result = run(ADD, args=[np.ones(64, np.float32), np.ones(64, np.float32), 64], counters=False)
    assert result.counters is None and result.annotated() == "" and result.to_json()["counters"] is None


def test_views_of_one_tensor_cost_what_their_place_says() -> None:
    y = np.zeros(64, np.float32)
    storage = np.zeros(4096, np.float32)
    for start, sectors in ((0, 8), (1, 10), (8, 8), (5, 10)):
        result = run(ADD, args=[storage[start : start + 64], y, 64])
        assert result.counters
        load = [c.global_load for s, c in result.counters.by_site() if s.line == 9 and c.global_load.requests]
        assert [traffic.sectors for traffic in load] == [sectors]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([np.zeros(64, np.float32), 64], ["takes 3 arguments", "x, y, n"]),
        ([np.zeros(64, np.float32), np.zeros(64, np.float16), 64], ["argument 1 \\(y\\)", "float16", "float32"]),
        ([np.zeros(64, np.float32), np.zeros(64, np.float32), 0.5], ["argument 2 \\(n\\)", "0.5"]),
        ([np.zeros(64, np.float32), np.zeros(64, np.float32), 1 << 31], ["argument 2 \\(n\\)", "2147483648"]),
        ([3, np.zeros(64, np.float32), 64], ["argument 0 \\(x\\)", "pointer"]),
        ([np.zeros((64, 2), np.float32)[:, 0], np.zeros(64, np.float32), 64], ["argument 0", "contiguous"]),
        ([np.zeros(64, "S4"), np.zeros(64, np.float32), 64], ["S4"]),
        ([np.zeros(64, ">f4"), np.zeros(64, np.float32), 64], [">f4"]),
        ([np.zeros(64, np.float32), np.frombuffer(bytes(256), np.float32), 64], ["argument 1 \\(y\\)", "read-only"]),
        (["x", np.zeros(64, np.float32), 64], ["argument 0 \\(x\\)"]),
    ],
)
def test_arguments_that_do_not_fit_are_refused(args: list[Any], words: list[str]) -> None:
    for word in words:
        with pytest.raises(KernelArgumentError, match=word):
            run(ADD, args=args)


@pytest.mark.parametrize("size", [{"grid": 0}, {"block": 1025}, {"block": (32, 64)}, {"shared_bytes": 100_000}])
def test_sizes_beyond_a_v100_are_refused(size: dict[str, Any]) -> None:
    with pytest.raises(KernelArgumentError):
        run(ADD, args=[np.zeros(64, np.float32), np.zeros(64, np.float32), 64], **size)


def test_sources_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelBuildError, match=r"nowhere.cu cannot be read"):
        run(tmp_path / "nowhere.cu")
    with pytest.raises(KernelBuildError, match=r"no kernel 'other'.*Kernels in it: k"):
        run(ADD, "other")
    with pytest.raises(KernelBuildError, match=r"2 kernels.*k; second"):
        run(ADD + 'extern "C" __global__ void second() {}\n')
    with pytest.raises(KernelBuildError, match='extern "C" __global__'):
        run("__device__ void k() {}\n")
    with pytest.raises(KernelBuildError, match=r"does not compile.*undefined_name"):
        run('extern "C" __global__ void k(int* x) { *x = undefined_name; }\n')


def test_host_code_is_explained() -> None:
    program = ADD + "int main() { k<<<1, 64>>>(nullptr, nullptr, 0); }\n"
    with pytest.raises(KernelBuildError, match="#ifndef __CUDACC_RTC__"):
        run(program)
    hidden = ADD + "#ifndef __CUDACC_RTC__\nint main() { k<<<1, 64>>>(nullptr, nullptr, 0); }\n#endif\n"
    assert run(hidden, args=[np.ones(64, np.float32), np.zeros(64, np.float32), 64]).ok


def test_structs_null_pointers_and_halfs() -> None:
    source = """#include <cuda_fp16.h>
    struct Pair { int a; float b; };
    extern "C" __global__ void k(Pair pair, const float* maybe, half h, bool flag, double* y) {
      y[0] = pair.a; y[1] = pair.b; y[2] = maybe == nullptr; y[3] = __half2float(h); y[4] = flag;
    }
    """
    y = np.zeros(5)
    pair = np.array([(7, 0.5)], dtype=[("a", np.int32), ("b", np.float32)]).tobytes()
    result = run(source, block=1, args=[pair, None, np.float16(1.5), True, y])
    assert result.ok and y.tolist() == [7, 0.5, 1, 1.5, 1]


def test_an_endless_loop_ends_with_a_finding() -> None:
    source = 'extern "C" __global__ void k(volatile int* x) { while (*x == 0) {} }\n'
    result = run(source, args=[np.zeros(1, np.int32)], max_steps=500)
    assert not result.finished and [f.kind for f in result.findings] == ["endless"]


def test_the_simulator_is_there_after_import_labkit() -> None:
    code = "import labkit, sys; assert 'numpy' not in sys.modules; print(labkit.sim.run.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "run\n"), done.stderr


def test_names_of_the_package() -> None:
    for name in labkit.sim.__all__:
        assert callable(getattr(labkit.sim, name))
    with pytest.raises(AttributeError):
        labkit.sim.nothing  # noqa: B018
