"""Module variables: set before a launch, read after it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from labkit.device.nvrtc import find_nvrtc
from labkit.errors import KernelArgumentError
from labkit.sim import run

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")

SOURCE = """
#include <cuda_fp16.h>
struct Pair { int a; float b; };
__constant__ float taps[8];
__constant__ float scale = 2;
__constant__ Pair pair;
__constant__ __half half_of;
__device__ unsigned long long total;
static __device__ int found[2][4];
__device__ bool flag;
__device__ int c;
__device__ float4 wide;
namespace inner { __device__ double offset; }
namespace { __device__ int apart; }
__device__ float numbers[4] = {1, 2, 3, 4};
__device__ float* second = numbers + 1;
__device__ const char* const words[2] = {"no", "yes"};
extern "C" __global__ void k(float* out) {
  const int i = threadIdx.x;
  atomicAdd(&total, 3ull);
  found[1][i & 3] = i & 3;
  const float small = __half2float(half_of) + (float)inner::offset + flag + c + apart;
  const float sum = taps[i & 7] * scale + pair.b + small + wide.z;
  out[i] = sum + second[1] + words[pair.a & 1][0];
}
"""
CONSTANTS = {
    "flag": False,
    "c": 0,
    "pair": b"\0" * 8,
    "half_of": 0,
    "inner::offset": 0,
    "total": 0,
    "scale": 2,
    "apart": 0,
}


def launch(**variables: Any) -> Any:
    out = np.zeros(16, np.float32)
    result = run(SOURCE, block=16, args=[out], variables={**CONSTANTS, "wide": np.zeros(4, "f4"), **variables})
    assert result.ok
    return result, out


def test_every_kind_is_set_and_read(seed: int) -> None:
    random = np.random.default_rng(seed)
    taps, wide = random.standard_normal(8).astype(np.float32), torch.randn(4)
    pair = np.array([(1, 2.5)], [("a", np.int32), ("b", np.float32)])
    variables = {
        "taps": taps,
        "pair": pair.tobytes(),
        "half_of": 0.5,
        "flag": True,
        "c": np.int32(7),
        "wide": wide,
        "apart": 9,
    }
    result, out = launch(**variables, scale=3, **{"inner::offset": np.float64(0.25)})
    expected = np.tile(taps, 2) * 3 + 2.5 + 0.5 + 0.25 + 1 + 7 + 9 + wide[2].item() + 3 + ord("y")
    assert out == pytest.approx(expected, rel=1e-5)
    assert np.array_equal(result.variable("taps"), taps)
    assert result.variable("total").tolist() == [48]
    assert result.variable("found").reshape(2, 4)[1].tolist() == [0, 1, 2, 3]
    assert result.variable("found").dtype == np.int32
    assert result.variable("half_of").tolist() == [0.5]
    assert result.variable("inner::offset").tolist() == [0.25]
    assert result.variable("flag").tolist() == [True]
    assert torch.equal(torch.from_numpy(result.variable("wide", np.float32)), wide)
    assert result.variable("pair", pair.dtype) == pair


def test_a_result_keeps_what_its_launch_left() -> None:
    first, _ = launch()
    launch(total=1000, c=5)
    assert first.variable("total").tolist() == [48]
    assert first.variable("c").tolist() == [0]


def test_what_is_not_set_starts_as_the_source_says() -> None:
    source = "// never run before\n" + SOURCE
    out = np.zeros(2, np.float32)
    result = run(source, block=2, args=[out])
    assert result.ok
    assert out.tolist() == [3 + ord("n")] * 2
    assert result.variable("scale").tolist() == [2]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("nothing", 1, "no variable 'nothing'"),
        ("taps", np.zeros(7, np.float32), "32 bytes, 28 were given"),
        ("taps", np.zeros(8, np.int32), "holds float32"),
        ("taps", 1.0, "array or a struct"),
        ("taps", "zeros", "str"),
        ("pair", 1, "array or a struct"),
        ("pair", b"1234", "8 bytes, 4 were given"),
        ("c", 2**40, "does not fit"),
        ("c", 0.5, "does not fit"),
        ("c", np.zeros(1, np.float32), "holds int32"),
        ("scale", 1e300, "does not fit"),
        ("scale", 10**400, "does not fit"),
    ],
)
def test_misfits_are_refused_and_change_nothing(name: str, value: Any, message: str) -> None:
    launch(c=3)
    with pytest.raises(KernelArgumentError, match=message):
        launch(c=4, **{name: value}) if name != "c" else launch(c=value)
    left, _ = launch(c=3)
    assert left.variable("c").tolist() == [3]
    with pytest.raises(KernelArgumentError, match="whole number"):
        left.variable("c", "V3")
