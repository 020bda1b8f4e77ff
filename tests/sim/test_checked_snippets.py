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
SOME_BLOCKS = """k(int* y) {
  __shared__ int s[64];
  s[threadIdx.x] = threadIdx.x;
  if (WHICH) __syncthreads();
  y[blockIdx.x * 64 + threadIdx.x] = s[63 - threadIdx.x];
  BEHIND;
}"""
ONE_WORD = """k(const int* x, int* y) {
  __shared__ int s;
  s = VALUE;
  __syncthreads();
  y[blockIdx.x * 64 + threadIdx.x] = s;
}"""
VOLATILE = """k(int* y) {
  __shared__ volatile int s[64];
  int sum = 0;
  for (int i = 0; i < ROUNDS; i++) {
    s[threadIdx.x] = threadIdx.x + i;
    SYNC;
    sum += s[threadIdx.x ^ 32];
    SYNC;
  }
  y[threadIdx.x] = sum;
}"""
FOUND = """k(const int* x, int* y) {
  __shared__ volatile int found;
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < 256 && !found; i += 64) if (x[i] == 3) found = 1;
  __syncthreads();
  y[threadIdx.x] = found;
}"""
RING = """k(int* y) {
  __shared__ int ring[4][32];
  __shared__ volatile int head, tail;
  int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) head = tail = 0;
  __syncthreads();
  for (int i = 0; i < 9; i++) {
    if (threadIdx.x < 32) {
      if (lane == 0) while (i - tail >= 4) __nanosleep(10);
      __syncwarp();
      ring[i % 4][lane] = i + lane;
      FENCE;
      __syncwarp();
      if (lane == 0) head = i + 1;
    } else {
      if (lane == 0) while (head <= i) {}
      __threadfence_block();
      __syncwarp();
      y[i * 32 + lane] = ring[i % 4][31 - lane];
      __syncwarp();
      __threadfence_block();
      if (lane == 0) tail = i + 1;
    }
  }
}"""
ELECTED = """k(int* y) {
  __shared__ int first;
  if (threadIdx.x == 0) first = -1;
  __syncthreads();
  atomicCAS(&first, -1, (int)threadIdx.x);
  SYNC;
  y[threadIdx.x] = first;
}"""
SPREAD = """k(int* count, int* a, int* b) {
  int i = blockIdx.x * 64 + threadIdx.x;
  a[i] = i;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(count, 1);
    while (*(volatile int*)count < (int)gridDim.x) {}
    FENCE;
  }
  __syncthreads();
  b[i] = (READ a)[(i + 64) % (gridDim.x * 64)];
}"""
NAMED = """k(int* y) {
  __shared__ int s[64];
  s[threadIdx.x] = threadIdx.x;
  if (threadIdx.x < THREADS) asm volatile("bar.sync %0, " COUNT ";" :: "r"(NUMBER) : "memory");
  y[threadIdx.x] = s[threadIdx.x];
}"""
TWO_COUNTS = """k(int* y) {
  if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");
  else asm volatile("bar.sync 1, " COUNT ";" ::: "memory");
  y[threadIdx.x] = 1;
}"""
VOTE = (
    "k(unsigned* y) { unsigned lane = threadIdx.x % 32, mask = MASK; y[threadIdx.x] = __ballot_sync(mask, lane & 1); }"
)
OUTSIDE = """k(void* y) {
  int lane = threadIdx.x;
  if (lane >= 20) return;
  TYPE there = __shfl_down_sync(0xfffffu, TYPE(lane * 3), 4);
  ((TYPE*)y)[lane] = lane < LIMIT ? there : 0;
}"""
HALVES = """k(int* y) {
  int lane = threadIdx.x % 32;
  unsigned mask = lane < 16 ? 0xffff : 0xffff0000;
  y[threadIdx.x] = __shfl_xor_sync(mask, lane * 3, DISTANCE);
}"""
SCOPE = "k(int* n) { atomicAdd_block(n + PLACE, 1); if (threadIdx.x == 0) OTHER; }"
STUCK = """k(volatile int* flag, int* y) {
  if (threadIdx.x >= 32) while (*flag == 0) {}
  __syncthreads();
  if (threadIdx.x == 0) *flag = 1;
  y[threadIdx.x] = 1;
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
    "a barrier of the first block only": snippet(
        SOME_BLOCKS, 256, grid=4, WHICH="blockIdx.x == 0", BEHIND="", finds="shared-race"
    ),
    "... of all but the last": snippet(
        SOME_BLOCKS, 256, grid=4, WHICH="blockIdx.x != gridDim.x - 1", BEHIND="__syncthreads()", finds="shared-race"
    ),
    "... of every other block": snippet(
        SOME_BLOCKS, 256, grid=4, WHICH="!(blockIdx.x & 1)", BEHIND="", finds="shared-race"
    ),
    "... of all, then of some": snippet(
        SOME_BLOCKS, 256, grid=4, WHICH="true", BEHIND="if (blockIdx.x == 0) __syncthreads()"
    ),
    "threads store one value": snippet(ONE_WORD, 256, 256, grid=4, VALUE="blockIdx.x"),
    "... and different ones outside block 0": snippet(
        ONE_WORD, 256, 256, grid=4, VALUE="threadIdx.x * blockIdx.x", finds="shared-race"
    ),
    "... and different ones in the last block": snippet(
        ONE_WORD, 256, 256, grid=4, VALUE="blockIdx.x == 3 ? x[0] + threadIdx.x : x[0]", finds="shared-race"
    ),
    "volatile data": snippet(VOLATILE, 64, ROUNDS="3", **SYNC),
    "... with nothing in between": snippet(VOLATILE, 64, ROUNDS="1", SYNC="", finds="shared-race"),
    "... nor in a loop": snippet(VOLATILE, 64, ROUNDS="3", SYNC="", finds="shared-race"),
    "a volatile flag that ends a loop": snippet(FOUND, 256, 64),
    "a ring between two warps": snippet(RING, 288, FENCE="__threadfence_block()"),
    "... without a fence": snippet(RING, 288, FENCE="", finds="shared-race"),
    "the winner of a compare-and-swap": snippet(ELECTED, 64, **SYNC),
    "... read too early": snippet(ELECTED, 64, SYNC="", finds="shared-race"),
    "a wait for all blocks": snippet(SPREAD, Zeros(1), 256, 256, grid=4, FENCE="__threadfence()", READ=""),
    "... without the reader's fence": snippet(
        SPREAD, Zeros(1), 256, 256, grid=4, FENCE="", READ="", finds="missing-fence"
    ),
    "... that reads volatile": snippet(SPREAD, Zeros(1), 256, 256, grid=4, FENCE="", READ="(volatile int*)"),
    "a plain look at an atomic's word": snippet(
        "k(int* n, int* y) { atomicAdd(n, 1); y[blockIdx.x * 64 + threadIdx.x] = *n; }",
        *(Zeros(1), 256),
        grid=4,
        finds="global-race",
    ),
    "a barrier of one warp": snippet(NAMED, 64, THREADS="32", COUNT='"32"', NUMBER="3"),
    "... that two come to": snippet(NAMED, 64, THREADS="64", COUNT='"32"', NUMBER="3", finds="invalid-barrier"),
    "... of part of a warp": snippet(NAMED, 64, THREADS="40", COUNT='"40"', NUMBER="3", finds="invalid-barrier"),
    "... that does not exist": snippet(
        NAMED, 64, THREADS="64", COUNT='"64"', NUMBER="16 + y[0]", finds="invalid-barrier"
    ),
    "two counts at a barrier": snippet(TWO_COUNTS, 64, COUNT='"96"', finds="invalid-barrier"),
    "... that agree": snippet(TWO_COUNTS, 64, COUNT='"64"'),
    "a vote of half warps": snippet(VOTE, 64, MASK="lane < 16 ? 0xffff : 0xffff0000"),
    "... that do not agree who they are": snippet(VOTE, 64, MASK="lane < 8 ? 0xff : 0xffffffff", finds="missing-lanes"),
    "a shuffle that reads outside its mask": snippet(OUTSIDE, 64, block=32, TYPE="int", LIMIT="16"),
    "... and keeps what it read": snippet(OUTSIDE, 64, block=32, TYPE="int", LIMIT="17", finds="missing-lanes"),
    "... in two halves": snippet(OUTSIDE, 64, block=32, TYPE="double", LIMIT="17", finds="missing-lanes"),
    "a shuffle within half warps": snippet(HALVES, 64, DISTANCE="8"),
    "... with the other half": snippet(HALVES, 64, DISTANCE="16", finds="missing-lanes"),
    "a block's atomic on its own word": snippet(
        SCOPE, Zeros(5), grid=4, PLACE="blockIdx.x", OTHER="atomicAdd(n + 4, 1)"
    ),
    "... on a word of all blocks": snippet(SCOPE, Zeros(5), grid=4, PLACE="0", OTHER="", finds="global-race"),
    "... on a word that another block counts in": snippet(
        SCOPE, Zeros(5), grid=4, PLACE="blockIdx.x", OTHER="atomicAdd(n + blockIdx.x / 2, 1)", finds="global-race"
    ),
    "a barrier on two sides of a branch": snippet(TWO_BARRIERS, 4, finds="barrier-divergence"),
}


@pytest.mark.parametrize("name", SNIPPETS)
@pytest.mark.parametrize("shuffled", [False, True])
def test_what_is_found(name: str, shuffled: bool, seed: int) -> None:
    result = SNIPPETS[name].run(seed, seed if shuffled else None)
    found, wanted = {found.kind for found in result.findings}, SNIPPETS[name].kinds
    assert (wanted <= found) if wanted else not found, result


def test_an_unrolled_line_is_told_once(seed: int) -> None:
    loop = "for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(~0u, v, d);"
    kernel = "k(float* x) { int t = threadIdx.x; if (t >= 20) return; float v = x[t]; " + loop + " x[t] = v; }"
    x = np.random.default_rng(seed).random(32, np.float32)
    [found] = run(HEAD + kernel, grid=1, block=32, args=[x]).findings
    assert found.kind == "missing-lanes" and found.count > 20


def test_the_barrier_that_a_spinning_thread_keeps_waiting_is_named() -> None:
    args = [np.zeros(1, np.int32), np.zeros(64, np.int32)]
    result = run(HEAD + STUCK, grid=1, block=64, args=args, max_steps=2000)
    waiting = {found.kind: (found.line, found.thread, found.count) for found in result.findings}
    assert waiting == {"endless": (2, 32, 32), "deadlock": (3, 0, 32)}


def test_a_fence_is_not_the_cure_for_a_plain_look_at_an_atomics_word(seed: int) -> None:
    [found] = SNIPPETS["a plain look at an atomic's word"].run(seed, None).findings
    assert "volatile" in found.text and "fence" not in found.text
