"""Headers of the C, C++ and CUDA libraries compile and run, as users' files include them."""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

import labkit.sim
from labkit.device.nvrtc import find_nvrtc
from labkit.device.toolkit import wheel_folders
from labkit.errors import KernelBuildError
from labkit.sim.host_headers import HOST_HEADERS, HOST_ONLY

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")

SOURCE = """
#include <cooperative_groups.h>
#include <cub/block/block_scan.cuh>
namespace cg = cooperative_groups;

extern "C" __global__ void sums(const int* in, int* of_tile, int* up_to, int n) {
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<16>(block);
  const int i = block.group_index().x * block.size() + block.thread_rank();
  const int value = i < n ? in[i] : 0;
  int sum = value;
  for (int distance = tile.size() / 2; distance; distance /= 2) sum += tile.shfl_xor(sum, distance);
  using Scan = cub::BlockScan<int, 128>;
  __shared__ typename Scan::TempStorage storage;
  int scanned;
  Scan(storage).InclusiveSum(value, scanned);
  if (i < n) of_tile[i] = sum;
  if (i < n) up_to[i] = scanned;
}
"""
GRID = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void total(const int* in, int* of_block, int* out) {
  cg::grid_group grid = cg::this_grid();
  atomicAdd(of_block + blockIdx.x, in[grid.thread_rank()]);
  grid.sync();
  int sum = 0;
  for (int i = 0; i < gridDim.x; i++) sum += of_block[i];
  grid.sync();
  if (threadIdx.x == 0) of_block[blockIdx.x] = sum + blockIdx.x;
  grid.sync();
  out[grid.thread_rank()] = of_block[gridDim.x - 1 - blockIdx.x];
}
"""
SORT = """
#include <cub/cub.cuh>
extern "C" __global__ void sort(int* values, int* largest) {
  using Sort = cub::BlockRadixSort<int, 64, 2>;
  using Reduce = cub::BlockReduce<int, 64>;
  __shared__ typename Sort::TempStorage storage;
  __shared__ typename Reduce::TempStorage reducing;
  int mine[2] = {values[2 * threadIdx.x], values[2 * threadIdx.x + 1]};
  int most = Reduce(reducing).Reduce(max(mine[0], mine[1]), cub::Max());
  if (threadIdx.x == 0) *largest = most;
  Sort(storage).Sort(mine);
  values[2 * threadIdx.x] = mine[0];
  values[2 * threadIdx.x + 1] = mine[1];
}
"""
EXPRESSIONS = [  # headers, value with x in place of a float, the same in Python
    ("cmath cstdint", "std::sqrt(x) + std::fabs(-x) + std::isnan(x) + sizeof(std::uint16_t)", lambda x: x**0.5 + x + 2),
    ("limits", "std::numeric_limits<int>::max() / 1e9f + x", lambda x: 2.147483647 + x),
    ("type_traits", "std::is_same_v<std::decay_t<const float&>, float> + x", lambda x: 1 + x),
    ("utility tuple", "std::get<1>(std::make_tuple(1, x)) + std::pair<int, float>(1, x).second", lambda x: 2 * x),
    ("array", "[](std::array<float, 2> a) { return a[0] + a.size(); }({x, 1})", lambda x: x + 2),
    ("complex cmath", "abs(std::complex<float>(3 * x, 4 * x)) + std::cos(0.0f)", lambda x: 5 * x + 1),
    ("thrust/complex.h", "thrust::abs(thrust::complex<float>(3 * x, 0) + 4 * x)", lambda x: 7 * x),
    ("algorithm", "std::max(x, 0.5f) + std::clamp(7, 1, 3)", lambda x: max(x, 0.5) + 3),
    (
        "initializer_list",
        "[](std::initializer_list<float>l) { return *l.begin() * l.size(); }({x, 1})",
        lambda x: 2 * x,
    ),
    ("inttypes.h", "(float)(uint8_t)UINT16_MAX + x", lambda x: 255 + x),
    ("cfloat climits cstddef", "FLT_EPSILON + CHAR_BIT + sizeof(std::size_t) + x", lambda x: 16 + x),
    ("math.h", "(float)M_PI + x", lambda x: math.pi + x),
    ("cuda.h cuda_runtime.h curand.h map vector thrust/device_vector.h", "x", lambda x: x),
]


def kernel(headers: str, value: str) -> str:
    includes = "".join(f"#include <{header}>\n" for header in headers.split())
    return f'{includes}extern "C" __global__ void k(float* out, float x) {{ out[threadIdx.x] = {value}; }}\n'


@pytest.mark.parametrize(("headers", "value", "expected"), EXPRESSIONS, ids=[row[0] for row in EXPRESSIONS])
def test_libraries_of_c_and_cpp(seed: int, headers: str, value: str, expected: Callable[[float], float]) -> None:
    x = float(np.float32(random.uniform(0.1, 3)))
    out = np.zeros(2, np.float32)
    assert labkit.sim.run(kernel(headers, value), block=2, args=[out, x]).ok
    assert out == pytest.approx([expected(x)] * 2, rel=1e-6)


def test_every_header_goes_with_every_other() -> None:
    everything = sorted(HOST_HEADERS, key=lambda name: random.random())
    out = np.zeros(1, np.float32)
    assert labkit.sim.run(kernel(" ".join(everything), "x"), block=1, args=[out, 2.0]).ok
    assert out == [2], everything
    assert {"map", "iostream"} <= set(HOST_ONLY)


def test_cooperative_groups_and_cub(seed: int) -> None:
    values = torch.randint(-1000, 1000, (256,), dtype=torch.int32, generator=torch.Generator().manual_seed(seed))
    of_tile, up_to = torch.zeros_like(values), torch.zeros_like(values)
    result = labkit.sim.run(SOURCE, name="sums", grid=(2,), block=(128,), args=[values, of_tile, up_to, 256])
    assert not result.findings
    assert torch.equal(of_tile, values.view(-1, 16).sum(1, dtype=torch.int32).repeat_interleave(16))
    assert torch.equal(up_to.view(2, 128), values.view(2, 128).cumsum(1, dtype=torch.int32))


@pytest.mark.parametrize("shuffle_seed", [None, 1])
def test_a_grid_synchronises(seed: int, shuffle_seed: int | None) -> None:
    values = np.random.default_rng(seed).integers(-1000, 1000, 6 * 96).astype(np.int32)
    out = np.zeros_like(values)
    arguments = [values, np.zeros(6, np.int32), out]
    assert labkit.sim.run(GRID, grid=6, block=96, args=arguments, shuffle_seed=shuffle_seed).ok
    assert np.array_equal(out, values.sum() + np.repeat(np.arange(6)[::-1], 96))


def test_all_of_cub_that_kernels_use(seed: int) -> None:
    values = np.random.default_rng(seed).integers(-(2**31), 2**31, 128).astype(np.int32)
    expected, largest = np.sort(values), np.zeros(1, np.int32)
    assert labkit.sim.run(SORT, block=64, args=[values, largest]).ok
    assert np.array_equal(values, expected)
    assert largest == expected.max()


def test_missing_headers_have_a_cure() -> None:
    with pytest.raises(KernelBuildError, match=r"mine\.cuh") as caught:
        labkit.sim.run(kernel("mine.cuh", "x"))
    assert "include_dirs" in caught.value.cure
    if importlib.util.find_spec("nvidia") and not list(wheel_folders("curand")):
        with pytest.raises(KernelBuildError, match=r"curand_kernel\.h") as caught:
            labkit.sim.run(kernel("curand_kernel.h", "x"))
        assert "nvidia-curand-cu12" in caught.value.cure


def test_a_barrier_of_the_library_orders_its_threads(seed: int) -> None:
    """cuda::barrier waits with loads of the memory model, which are no race with the updates they wait for."""
    source = """
#include <cuda/barrier>
extern "C" __global__ void exchange(const int* in, int* out) {
  __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
  __shared__ int words[64];
  if (threadIdx.x == 0) init(&barrier, blockDim.x);
  __syncthreads();
  words[threadIdx.x] = in[threadIdx.x];
  barrier.arrive_and_wait();
  out[threadIdx.x] = words[threadIdx.x ^ 33];
}"""
    values = torch.randint(-1000, 1000, (64,), dtype=torch.int32, generator=torch.Generator().manual_seed(seed))
    out = torch.zeros_like(values)
    result = labkit.sim.run(source, name="exchange", grid=1, block=64, args=[values, out])
    assert not result.findings
    assert torch.equal(out, values[torch.arange(64) ^ 33])
