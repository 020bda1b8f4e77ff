"""Divergence: threads part, wait for each other, and meet again."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.sim import Result, run

SOURCE = r"""
extern "C" __global__ void nested(const int* a, int* o, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], r = 0;
    for (int k = 0; k < (x & 15); k++) {
        if ((x ^ k) & 1) { r += k * x; if (k > 7) break; } else { r ^= x + k; if ((x >> 4 & 3) == 1) continue; r += 3; }
    }
    switch (x & 7) {
        case 0: r += 1; break;
        case 1: r *= 3;
        case 2: r -= 7; break;
        case 5: r = ~r; break;
        default: r ^= 0x55;
    }
    o[i] = r;
}

extern "C" __global__ void warp_sum(const int* a, int* o, int n) {   // any block size; the mask names who is there
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned mask = __ballot_sync(~0u, i < n);
    if (i >= n) return;
    int s = a[i];
    for (int d = 16; d; d >>= 1) { int t = __shfl_down_sync(mask, s, d); if ((mask >> ((threadIdx.x & 31) + d)) & 1 && (threadIdx.x & 31) + d < 32) s += t; }
    if ((threadIdx.x & 31) == 0) atomicAdd(o, s);
}

extern "C" __global__ void half_warps(int* o) {                       // two partners at different __syncwarp
    __shared__ int s[32];
    int i = threadIdx.x;
    if (i < 16) { s[i] = i + 100; __syncwarp(); o[i] = s[i + 16]; }
    else        { s[i] = i + 200; __syncwarp(); o[i] = s[i - 16]; }
}

extern "C" __global__ void block_sum_loop(const int* a, int* o, const int* rounds) {  // barriers in loops of unequal length
    __shared__ int s[64];
    int i = threadIdx.x, r = 0;
    for (int k = 0; k < rounds[blockIdx.x]; k++) {
        s[i] = a[(blockIdx.x * 64 + i + k) & 255];
        __syncthreads();
        r += s[63 - i];
        if (i < k) r ^= k;
        __syncthreads();
    }
    o[blockIdx.x * 64 + i] = r;
}

extern "C" __global__ void spin_lock(int* lock, volatile int* total) {
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            *total = *total + 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}

extern "C" __global__ void naive_lock(int* lock, volatile int* total) { // needs independent thread scheduling
    while (atomicCAS(lock, 0, 1) != 0) {}
    *total = *total + 1;
    __threadfence();
    atomicExch(lock, 0);
}

extern "C" __global__ void relay(volatile int* flag, int* o) {          // block b waits for block b + 1
    if (threadIdx.x == 0) {
        if (blockIdx.x + 1 < gridDim.x) while (flag[blockIdx.x + 1] == 0) {}
        o[blockIdx.x] = gridDim.x - blockIdx.x + (blockIdx.x + 1 < gridDim.x ? ((volatile int*)o)[blockIdx.x + 1] : 0);
        __threadfence();
        flag[blockIdx.x] = 1;
    }
}

extern "C" __global__ void last_block(const int* a, int* partial, unsigned* ticket, int* o, int n) {
    __shared__ int s[128];
    __shared__ bool last;
    int i = threadIdx.x, sum = 0;
    for (int k = blockIdx.x * blockDim.x + i; k < n; k += gridDim.x * blockDim.x) sum += a[k];
    s[i] = sum;
    __syncthreads();
    for (int d = blockDim.x / 2; d; d >>= 1) { if (i < d) s[i] += s[i + d]; __syncthreads(); }
    if (i == 0) {
        partial[blockIdx.x] = s[0];
        __threadfence();
        last = atomicAdd(ticket, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && i == 0) { __threadfence(); int t = 0; for (int b = 0; b < gridDim.x; b++) t += ((volatile int*)partial)[b]; *o = t; }
}

extern "C" __global__ void producer(const int* a, int* o, int n) {      // warp 0 fills, warp 1 drains: named barriers
    __shared__ int s[2][32];
    int lane = threadIdx.x & 31;
    if (threadIdx.x < 32) {
        for (int k = 0; k < n; k++) {
            if (k >= 2) asm volatile("bar.sync %0, 64;" :: "r"(3 + (k & 1)) : "memory");
            s[k & 1][lane] = a[32 * k + lane];
            asm volatile("bar.arrive %0, 64;" :: "r"(1 + (k & 1)) : "memory");
        }
    } else {
        for (int k = 0; k < n; k++) {
            asm volatile("bar.sync %0, 64;" :: "r"(1 + (k & 1)) : "memory");
            o[32 * k + lane] = s[k & 1][31 - lane];
            if (k + 2 < n) asm volatile("bar.arrive %0, 64;" :: "r"(3 + (k & 1)) : "memory");
        }
    }
}

extern "C" __global__ void votes(const int* a, int* o) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, x = a[i];
    int r = __syncthreads_count(x > 0);
    r = r * 4 + 2 * (__syncthreads_or(x > 100) != 0) + (__syncthreads_and(x > -100) != 0);
    if (x & 1) r += 1000;
    o[i] = r;
}

extern "C" __global__ void votes_apart(const int* a, int* o) {         // blocks reach the barrier at different times
    int i = blockIdx.x * blockDim.x + threadIdx.x, x = a[i], r = 0;
    for (int k = 0; k <= blockIdx.x; k++) r += __syncthreads_count(x > k);
    if (threadIdx.x < 7) r += 5;
    o[i] = r + __syncthreads_count(threadIdx.x < 7);
}
"""


def sim(name: str, grid: int, block: int, *args: object, **options: object) -> Result:
    return run(SOURCE, name=name, grid=grid, block=block, args=list(args), **options)  # type: ignore[arg-type]


def as_int32(x: int) -> int:
    return (x + 2**31) % 2**32 - 2**31


def nested_reference(x: int) -> int:
    r = 0
    for k in range(x & 15):
        if (x ^ k) & 1:
            r = as_int32(r + k * x)
            if k > 7:
                break
        else:
            r ^= as_int32(x + k)
            if x >> 4 & 3 == 1:
                continue
            r = as_int32(r + 3)
    case = x & 7
    if case == 0:
        return as_int32(r + 1)
    if case in (1, 2):
        return as_int32((r * 3 if case == 1 else r) - 7)
    return ~r if case == 5 else r ^ 0x55


@pytest.mark.parametrize("block", [1, 31, 32, 48, 64, 100])
@pytest.mark.parametrize("order", [None, 1, 2])
def test_nested_control_flow(seed: int, block: int, order: int | None) -> None:
    n = 230
    a = np.random.default_rng(seed).integers(-(2**31), 2**31, n).astype(np.int32)
    o = np.zeros(n, np.int32)
    result = sim("nested", -(-n // block), block, a, o, n, shuffle_seed=order)
    assert result.ok, result
    assert o.tolist() == [nested_reference(int(x)) for x in a]


@pytest.mark.parametrize("block", [7, 32, 48, 96])
def test_warp_operations_in_ragged_blocks(seed: int, block: int) -> None:
    a = np.random.default_rng(seed).integers(-1000, 1000, 205).astype(np.int32)
    o = np.zeros(1, np.int32)
    result = sim("warp_sum", -(-205 // block), block, a, o, 205)
    assert result.ok, result
    assert o[0] == a.sum()


def test_syncwarp_at_two_places() -> None:
    o = np.zeros(32, np.int32)
    result = sim("half_warps", 1, 32, o)
    assert result.ok, result
    assert o.tolist() == [i + 216 for i in range(16)] + [i + 100 for i in range(16)]


@pytest.mark.parametrize("order", [None, 3])
def test_barriers_in_loops_of_unequal_length(seed: int, order: int | None) -> None:
    rng = np.random.default_rng(seed)
    a, rounds = rng.integers(0, 1000, 256).astype(np.int32), rng.integers(0, 9, 5).astype(np.int32)
    o = np.zeros((5, 64), np.int32)
    result = sim("block_sum_loop", 5, 64, a, o, rounds, shuffle_seed=order)
    assert result.ok, result
    for block in range(5):
        for i in range(64):
            r = 0
            for k in range(rounds[block]):
                r += int(a[(block * 64 + 63 - i + k) & 255])
                r = r ^ k if i < k else r
            assert o[block, i] == r


@pytest.mark.parametrize("name", ["spin_lock", "naive_lock"])
@pytest.mark.parametrize("order", [None, 5])
def test_locks_make_progress(name: str, order: int | None) -> None:
    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    result = sim(name, 3, 40, lock, total, shuffle_seed=order)
    assert result.ok, result
    assert total[0] == 120


def test_blocks_wait_for_later_blocks() -> None:
    flag, o = np.zeros(6, np.int32), np.zeros(6, np.int32)
    result = sim("relay", 6, 64, flag, o)
    assert result.ok, result
    assert o.tolist() == [21, 15, 10, 6, 3, 1]


@pytest.mark.parametrize("order", [None, 8])
def test_last_block_reduces(seed: int, order: int | None) -> None:
    a = np.random.default_rng(seed).integers(-1000, 1000, 3001).astype(np.int32)
    partial, ticket, o = np.zeros(6, np.int32), np.zeros(1, np.uint32), np.zeros(1, np.int32)
    result = sim("last_block", 6, 128, a, partial, ticket, o, 3001, shuffle_seed=order)
    assert result.ok, result
    assert o[0] == a.sum()


def test_named_barriers(seed: int) -> None:
    a = np.random.default_rng(seed).integers(0, 1000, (7, 32)).astype(np.int32)
    o = np.zeros((7, 32), np.int32)
    result = sim("producer", 1, 64, a, o, 7)
    assert result.ok, result
    assert (o == a[:, ::-1]).all()


@pytest.mark.parametrize("block", [32, 64, 40])
def test_barrier_reductions(seed: int, block: int) -> None:
    a = np.random.default_rng(seed).integers(-110, 110, (4, block)).astype(np.int32)
    o = np.zeros((4, block), np.int32)
    result = sim("votes", 4, block, a, o)
    assert result.ok, result
    expected = (a > 0).sum(1) * 4 + 2 * (a > 100).any(1) + (a > -100).all(1)
    assert (o == expected[:, None] + 1000 * (a & 1)).all()


def test_barrier_reductions_of_diverged_blocks(seed: int) -> None:
    a = np.random.default_rng(seed).integers(-3, 6, (4, 64)).astype(np.int32)
    o = np.zeros((4, 64), np.int32)
    result = sim("votes_apart", 4, 64, a, o)
    assert result.ok, result
    for block in range(4):
        r = sum(int((a[block] > k).sum()) for k in range(block + 1)) + 7
        assert o[block].tolist() == [r + 5 * (i < 7) for i in range(64)]
