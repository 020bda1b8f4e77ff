"""Small kernels as people write them: idioms that are right pass without a word, slips are named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from labkit.sim.api import Result, run

HEAD = 'extern "C" __global__ void '
GRID_BARRIER = """
__device__ unsigned arrived = 0;
__device__ volatile unsigned sense = 0;
__device__ void grid_barrier() {
  __syncthreads();
  if (threadIdx.x == 0) {
    FENCE;
    unsigned before = sense;
    if (atomicAdd(&arrived, 1) == gridDim.x - 1) { arrived = 0; FENCE; sense = before + 1; }
    else { while (sense == before) {} }
    FENCE;
  }
  __syncthreads();
}
extern "C" __global__ void k(int* a, int* b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  a[i] = i;
  grid_barrier();
  b[i] = a[n - 1 - i];
  grid_barrier();
  a[i] = b[(i + 70) % n];
}
"""
LOCK = """
extern "C" __global__ void k(int* lock, int* count) {
  if (threadIdx.x == 0) {
    while (atomicCAS(lock, 0, 1) != 0) {}
    ENTER;
    *count += 1;
    LEAVE;
    atomicExch(lock, 0);
  }
}
"""
SHARED_FLAG = """
extern "C" __global__ void k(int* y) {
  __shared__ volatile int flag;
  __shared__ int data[32];
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    data[threadIdx.x] = threadIdx.x * 3;
    __threadfence_block();
    SYNC;
    if (threadIdx.x == 0) flag = 1;
  } else {
    while (flag == 0) {}
    __threadfence_block();
    y[threadIdx.x - 32] = data[63 - threadIdx.x];
  }
}
"""
REVERSE = """k(const int* x, int* y) {
  __shared__ int s[128];
  int i = threadIdx.x;
  s[i] = x[i];
  SYNC;
  y[i] = s[COUNT - 1 - i];
}"""
LOOP = """k(const int* x, int* y) {
  __shared__ int s[64];
  int sum = 0;
  for (int j = 0; j < 4; j++) {
    s[threadIdx.x] = x[64 * j + threadIdx.x];
    __syncthreads();
    sum += s[63 - threadIdx.x];
    SYNC;
  }
  y[threadIdx.x] = sum;
}"""
PING_PONG = """k(int* y) {
  __shared__ int s[2][64];
  int t = threadIdx.x, now = 0;
  s[0][t] = t;
  __syncthreads();
  for (int d = 1; d < 64; d *= 2) { s[!now][t] = s[now][t] + (t >= d ? s[now][t - d] : 0); now = !now; SYNC; }
  y[t] = s[now][t];
}"""
HALF_WARPS = """k(int* y) {
  __shared__ int s[64];
  int t = threadIdx.x, lane = t % 16;
  unsigned mask = 0xffffu << (t % 32 / 16 * 16);
  s[t] = t;
  SYNC;
  y[t] = s[t - lane + 15 - lane];
}"""
MAXIMUM = """
__device__ void atomic_max(float* address, float value) {
  int old = *(int*)address, assumed;
  do {
    assumed = old;
    old = atomicCAS((int*)address, assumed, __float_as_int(fmaxf(value, __int_as_float(assumed))));
  } while (old != assumed);
}
extern "C" __global__ void k(const int* x, void* y) { atomic_max((float*)y, x[blockIdx.x * blockDim.x + threadIdx.x]); }
"""
COUNTER = """k(int* n, int* y, const int* x) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (x[i] & 1) y[atomicAdd(n, 1)] = x[i];
}"""
TWO_BARRIERS = """k(int* y) {
  if (threadIdx.x < 32) { y[0] = 1; __syncthreads(); y[1] = 1; }
  else { y[2] = 1; __syncthreads(); y[3] = 1; }
}"""
SYNC = {"SYNC": "__syncthreads()"}


@dataclass(frozen=True)
class Zeros:
    """An argument: so many zeros."""

    size: int


@dataclass(frozen=True)
class Snippet:
    """kinds: what must be found, among what else a fault leads to; nothing for a kernel that is right."""

    source: str
    args: tuple[Any, ...]  # an int: so many random integers 0 ... 4; Zeros; a tuple holds a number for a parameter
    kinds: frozenset[str]
    macros: dict[str, str]
    grid: int
    block: int

    def run(self, seed: int, shuffle: int | None) -> Result:
        rng = np.random.default_rng(seed)
        args = [self._argument(description, rng) for description in self.args]
        source = self.source if "__global__" in self.source else HEAD + self.source
        return run(source, grid=self.grid, block=self.block, args=args, macros=self.macros, shuffle_seed=shuffle)

    def _argument(self, description: Any, rng: np.random.Generator) -> Any:
        if isinstance(description, Zeros):
            return np.zeros(description.size, np.int32)
        return description[0] if isinstance(description, tuple) else rng.integers(0, 5, description).astype(np.int32)


def snippet(source: str, *args: Any, finds: str = "", grid: int = 1, block: int = 64, **macros: str) -> Snippet:
    return Snippet(source, args, frozenset(finds.split()), macros, grid, block)


SNIPPETS = {
    "a barrier of the grid": snippet(GRID_BARRIER, 256, 256, (256,), grid=4, FENCE="__threadfence()"),
    "... without fences": snippet(GRID_BARRIER, 256, 256, (256,), grid=4, FENCE="", finds="missing-fence"),
    "a lock": snippet(LOCK, Zeros(1), 1, grid=5, ENTER="__threadfence()", LEAVE="__threadfence()"),
    "... left without a fence": snippet(
        LOCK, Zeros(1), 1, grid=5, ENTER="__threadfence()", LEAVE="", finds="missing-fence"
    ),
    "... entered without a fence": snippet(
        LOCK, Zeros(1), 1, grid=5, ENTER="", LEAVE="__threadfence()", finds="missing-fence"
    ),
    "a flag in shared memory": snippet(SHARED_FLAG, 32, SYNC="__syncwarp()"),
    "... raised too early": snippet(SHARED_FLAG, 32, SYNC="", finds="shared-race"),
    "a block that is no multiple of a warp": snippet(REVERSE, 100, 100, block=100, COUNT="100", **SYNC),
    "... without its barrier": snippet(REVERSE, 100, 100, block=100, COUNT="100", SYNC="", finds="shared-race"),
    "a buffer that is used again": snippet(LOOP, 256, 64, **SYNC),
    "... too early": snippet(LOOP, 256, 64, SYNC="", finds="shared-race"),
    "two buffers in turn": snippet(PING_PONG, 64, **SYNC),
    "... without a barrier": snippet(PING_PONG, 64, SYNC="", finds="shared-race"),
    "half warps": snippet(HALF_WARPS, 64, SYNC="__syncwarp(mask)"),
    "... of other lanes": snippet(HALF_WARPS, 64, SYNC="__syncwarp(1u << t % 32)", finds="shared-race"),
    "an atomic made of compare-and-swap": snippet(MAXIMUM, 256, 1, grid=4),
    "all threads raise one flag": snippet(
        "k(const int* x, int* y) { if (x[blockIdx.x * 64 + threadIdx.x] == 3) *y = 1; }", 256, 1, grid=4
    ),
    "a block of threads stores one value": snippet("k(int* y) { y[blockIdx.x] = blockIdx.x * 2; }", 4, grid=4),
    "... and another in each block": snippet(
        "k(int* y) { y[threadIdx.x] = blockIdx.x; }", 64, grid=4, finds="global-race"
    ),
    "a counter for places": snippet(COUNTER, Zeros(1), 256, 256, grid=4),
    "counting without atomics": snippet(
        "k(const int* x, int* y) { y[x[blockIdx.x * 64 + threadIdx.x]]++; }", 256, 5, grid=4, finds="global-race"
    ),
    "moving in place": snippet(
        "k(int* x) { int i = threadIdx.x; if (i < 63) x[i] = x[i + 1]; }", 64, finds="global-race"
    ),
    "a barrier on two sides of a branch": snippet(TWO_BARRIERS, 4, finds="barrier-divergence"),
}


@pytest.mark.parametrize("name", SNIPPETS)
@pytest.mark.parametrize("shuffled", [False, True])
def test_what_is_found(name: str, shuffled: bool, seed: int) -> None:
    result = SNIPPETS[name].run(seed, seed if shuffled else None)
    found, wanted = {found.kind for found in result.findings}, SNIPPETS[name].kinds
    assert (wanted <= found) if wanted else not found, result
