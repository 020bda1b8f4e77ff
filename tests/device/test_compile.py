"""Compilation: what comes out, what goes wrong, and that the cache gives back exactly what was put in."""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from labkit.device import cache, compile, toolkit_headers
from labkit.device.compile import Build, compile_collected, compile_source
from labkit.device.nvrtc import Compiled, Nvrtc, find_nvrtc
from labkit.device.sources import Source
from labkit.device.toolkit import header_folders
from labkit.errors import KernelBuildError

ROOT = Path(__file__).resolve().parents[2]
needs_nvrtc = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")
pytestmark = needs_nvrtc


def addition(number: int) -> str:
    """A kernel that no other test has compiled."""
    return f"""
#include <cuda_fp16.h>
extern "C" __global__ void add(half* x, int n) {{
  __shared__ float row[FACTOR];
  row[threadIdx.x % FACTOR] = __half2float(x[threadIdx.x]);
  __syncthreads();
  if (threadIdx.x < n) x[threadIdx.x] = __float2half(row[(threadIdx.x + 1) % FACTOR] + {number});
}}
"""


@pytest.fixture
def source(seed: int, cache_folder: Path) -> str:
    return addition(random.randrange(10**9))


def forbid_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_again(*arguments: Any) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(Nvrtc, "compile", compile_again)


def test_one_run_gives_ptx_cubin_and_report(source: str) -> None:
    build = compile_source(source, "mine/add.cu", macros={"FACTOR": 64})
    assert ".target sm_70" in build.ptx and ".entry add(" in build.ptx
    assert build.cubin is not None and build.cubin.startswith(b"\x7fELF")
    assert build.resources["add"].shared_bytes == 64 * 4
    assert build.resources["add"].barriers == 1
    assert 0 < build.resources["add"].registers < 64
    assert build.compiler.startswith("NVRTC 12.")


def test_virtual_target_gives_ptx_only(source: str) -> None:
    build = compile_source(source, macros={"FACTOR": 32}, target="compute_70")
    assert ".target sm_70" in build.ptx and build.cubin is None and build.resources == {}


def test_line_table_names_the_source_and_no_folder(source: str, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "plus.cuh").write_text("__device__ inline float plus(float x) { return x + 1.0f; }\n")
    text = source.replace("#include", '#include "plus.cuh"\n#include', 1).replace("row[(", "plus(row[(", 1)
    text = text.replace("] +", "]) +", 1)
    monkeypatch.chdir(tmp_path)
    build = compile_source(text, "mine/add.cu", macros={"FACTOR": 32}, include_dirs=[tmp_path / "include"])
    files = [line.split('"')[1] for line in build.ptx.splitlines() if line.strip().startswith(".file")]
    assert "mine/add.cu" in files and "plus.cuh" in files
    assert not any(file.startswith("/") for file in files)
    assert str(tmp_path) not in build.ptx


def test_syntax_error_names_the_line_and_carries_the_log(source: str) -> None:
    broken = source.replace("__syncthreads();", "__syncthread();")
    line = broken.splitlines().index("  __syncthread();") + 1
    with pytest.raises(KernelBuildError) as caught:
        compile_source(broken, "mine/add.cu", macros={"FACTOR": 32})
    assert f"mine/add.cu({line})" in str(caught.value) and "__syncthread" in str(caught.value)
    assert "error" in caught.value.log
    assert "-DFACTOR=32" in caught.value.options


def test_error_directive_is_the_reason_given(cache_folder: Path) -> None:
    with pytest.raises(KernelBuildError, match="WIDTH is missing"):
        compile_source('#ifndef WIDTH\n#error "WIDTH is missing"\n#endif\n', "a.cu")


@pytest.mark.parametrize("macros", [{"2A": 1}, {"A B": 1}, {"": 1}, {"A=1 -DB": 2}])
def test_macro_names_are_checked(macros: dict[str, int]) -> None:
    with pytest.raises(KernelBuildError, match="macro"):
        compile_source("", macros=macros)


def test_unknown_target_is_refused() -> None:
    with pytest.raises(KernelBuildError, match="sm_75"):
        compile_source("", target="sm_75")


@pytest.mark.parametrize(
    "text", [None, 5, b"", "//\0\n", "// \udc80\n"], ids=["None", "int", "bytes", "zero byte", "surrogate"]
)
def test_what_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(KernelBuildError, match=r"The source is a|is no text"):
        compile_source(text)


@pytest.mark.parametrize("macros", [[], {5: 1}, {"A": None}, {"A": [1]}])
def test_what_is_no_macro_is_refused(macros: Any) -> None:
    with pytest.raises(KernelBuildError, match="macro"):
        compile_collected(Source("a.cu", ""), target="sm_70", macros=macros)


def test_damaged_builtins_are_not_the_sources_fault(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Compiled(False, "", None, "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE\nnvrtc: error: failed to open")
    monkeypatch.setattr(Nvrtc, "compile", lambda *arguments: failed)
    with pytest.raises(KernelBuildError, match="builtins") as caught:
        compile_source(source)
    assert "--force-reinstall" in caught.value.cure


def test_no_wheel_is_advised_where_there_is_none() -> None:
    """In a process that takes itself for one on a Mac."""
    code = (
        "import platform, sys\nplatform.machine = lambda: 'arm64'\n"
        "from labkit.device import compile, toolkit\ncompile.find_nvrtc = lambda: None\n"
        "try: compile.compile_source('')\nexcept Exception as error: print(error)\n"
    )
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=ROOT).stdout
    assert "pip install" not in told and "LABKIT_KERNEL_DIR" in told and "Linux and Windows" in told


def test_without_a_compiler_the_cure_is_a_wheel(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile, "find_nvrtc", lambda: None)
    with pytest.raises(KernelBuildError, match="no NVRTC") as caught:
        compile_source(source, macros={"FACTOR": 32})
    assert "nvidia-cuda-nvrtc-cu12" in caught.value.cure


def test_without_headers_the_cure_is_their_wheel(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile, "header_folders", lambda: ())
    with pytest.raises(KernelBuildError, match="headers are missing") as caught:
        compile_source(source, macros={"FACTOR": 32})
    assert "nvidia-cuda-runtime-cu12" in caught.value.cure


# --- the cache ------------------------------------------------------------------------------------------------------


def test_second_time_comes_from_the_cache(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_source(source, macros={"FACTOR": 32})
    forbid_compiling(monkeypatch)
    assert compile_source(source, macros={"FACTOR": 32}) == first


def test_what_is_filed_depends_on_everything(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = tmp_path / "deep.cuh"
    header.write_text("#define PLUS 1\n")
    (tmp_path / "plus.cuh").write_text('#include "deep.cuh"\n')
    text = '#include "plus.cuh"\n' + source.replace("] +", "] + PLUS +", 1)
    arguments: dict[str, Any] = {"macros": {"FACTOR": 32}, "include_dirs": [tmp_path]}
    first = compile_source(text, **arguments)
    header.write_text("#define PLUS 20000\n")
    assert compile_source(text, **arguments).ptx != first.ptx
    forbid_compiling(monkeypatch)
    for change in ({"macros": {"FACTOR": 33}}, {"target": "compute_70"}, {"name": "other.cu"}):
        with pytest.raises(AssertionError, match="compiled again"):
            compile_source(text, **{**arguments, **change})
    monkeypatch.setattr(Nvrtc, "__str__", lambda self: "NVRTC 12.77")
    with pytest.raises(AssertionError, match="compiled again"):
        compile_source(text, **arguments)


def test_a_changed_header_of_the_toolkit_is_noticed(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that only another of its headers includes."""
    (tmp_path / "outer.h").write_text('#include "inner.h"\n')
    inner = tmp_path / "inner.h"
    monkeypatch.setattr(compile, "header_folders", lambda: (*header_folders(), tmp_path))
    text = "#include <outer.h>\n" + source.replace("] +", "] + PLUS +", 1)
    found = []
    for plus in (1, 20000, 1):
        inner.write_text(f"#define PLUS {plus}\n")
        toolkit_headers._reached.cache_clear()
        toolkit_headers._look.cache_clear()
        found.append(compile_source(text, macros={"FACTOR": 32}).ptx)
        assert str(tmp_path) not in found[-1]
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"ptx": 1, "cubin": "", "log": ""}', b'{"ptx": "", "cubin": "*"}'])
def test_entries_that_are_whole_but_not_ours_are_made_again(source: str, cache_folder: Path, body: bytes) -> None:
    first = compile_source(source, macros={"FACTOR": 32})
    [file] = cache_folder.iterdir()
    file.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    again = compile_source(source, macros={"FACTOR": 32})
    assert (again.ptx, again.resources) == (first.ptx, first.resources)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "no digest"])
def test_damaged_entries_are_made_again(source: str, cache_folder: Path, damage: str) -> None:
    first = compile_source(source, macros={"FACTOR": 32})
    [file] = cache_folder.iterdir()
    content = file.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    changed = {"truncated": content[:-9], "flipped": flipped, "emptied": b"", "no digest": content.split(b"\n", 1)[1]}
    file.write_bytes(changed[damage])
    again = compile_source(source, macros={"FACTOR": 32})
    assert (again.ptx, again.resources) == (first.ptx, first.resources)
    assert file.stat().st_size > 100, "and kept"


def test_errors_are_not_kept(source: str, cache_folder: Path) -> None:
    with pytest.raises(KernelBuildError):
        compile_source(source)  # FACTOR is not defined
    assert not cache_folder.exists()


def test_a_folder_that_cannot_be_written_is_told_once(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        for factor in (32, 64):
            assert compile_source(source, macros={"FACTOR": factor}).cubin
    assert len(caplog.records) == 1 and "LABKIT_CACHE" in caplog.text


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABKIT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.kernel_cache_folder() == Path("/somewhere/labkit/kernels")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache.kernel_cache_folder() == Path("/home/me/.cache/labkit/kernels")


def _compile_in_process(text: str, results: Any) -> None:
    built: Build = compile_source(text, macros={"FACTOR": 48})
    results.put((built.ptx, len(built.cubin or b"")))


def test_processes_share_the_folder(source: str, cache_folder: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    workers = [context.Process(target=_compile_in_process, args=(source, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join(timeout=120)
    assert len(set(found)) == 1
    [file] = cache_folder.iterdir()  # and no scratch files
    assert json.loads(file.read_bytes().split(b"\n", 1)[1])["ptx"] == found[0][0]


def test_what_the_assembler_refuses_is_told() -> None:
    text = """extern "C" __global__ void k(float* y) {
      __shared__ float s[13000];
      s[threadIdx.x] = y[0];
      __syncthreads();
      y[threadIdx.x] = s[63 - threadIdx.x];
    }"""
    with pytest.raises(KernelBuildError, match="uses too much shared data") as caught:
        compile_source(text, target="sm_70")
    assert "V100" in caught.value.cure and "\0" not in caught.value.log
