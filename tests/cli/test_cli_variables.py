"""`labkit sim --set`: module variables from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.command_line import Cli, refused

from labkit.device.nvrtc import find_nvrtc

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")
SOURCE = """
__constant__ float taps[4];
__device__ int count;
extern "C" __global__ void k(float* out) { out[threadIdx.x] = taps[threadIdx.x & 3] + 0 * atomicAdd(&count, 1); }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "taps.cu"
    path.write_text(SOURCE, encoding="utf-8")
    return path


def test_variables_are_set_and_shown(cli: Cli, file: Path) -> None:
    launch = ("sim", file, "--block", 4, "--arg", "f32:4", "--print", 4)
    call = (*launch, "--set", "taps=f32:4=1,2,3,4", "--set", "count=7")
    ended = cli(*call)
    assert (ended.code, ended.err) == (0, "")
    for words in ("argument 0: 1 2 3 4", "taps: 1 2 3 4", "count: 11"):
        assert words in ended.out
    arrays = json.loads(cli(*call, "--json").out)["arrays"]
    assert arrays == {"0": [1, 2, 3, 4], "taps": [1, 2, 3, 4], "count": [11]}


WRONG = ("taps", "=3", "taps=", "taps=null", "taps=out f32:4", "taps=5", "other=1", "count=0.5")


@pytest.mark.parametrize("text", WRONG)
def test_what_sets_nothing_is_refused(cli: Cli, file: Path, text: str) -> None:
    refused(cli("sim", file, "--block", 4, "--arg", "f32:4", "--set", text), text.partition("=")[0] or "=3")
