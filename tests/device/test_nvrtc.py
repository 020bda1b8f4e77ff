"""Finding NVRTC among files that are none, are too old, too new, or do not know the V100."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit.device import nvrtc, toolkit
from labkit.device.nvrtc import Nvrtc, find_nvrtc

needs_nvrtc = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")


def described(version: tuple[int, int], architectures: set[int]) -> Nvrtc:
    library = Nvrtc.__new__(Nvrtc)
    library.path, library.version, library.architectures = "somewhere", version, frozenset(architectures)
    return library


@pytest.mark.parametrize(
    ("version", "architectures", "good"),
    [
        ((12, 8), {70, 75, 90}, True),
        ((12, 4), {70, 90}, True),
        ((12, 9), {70, 120}, True),
        ((12, 3), {70, 90}, False),
        ((13, 0), {75, 90}, False),
        ((11, 8), {70, 80}, False),
        ((12, 8), {75, 90}, False),
    ],
)
def test_which_compilers_will_do(version: tuple[int, int], architectures: set[int], good: bool) -> None:
    assert described(version, architectures).knows_v100 == good


def search(monkeypatch: pytest.MonkeyPatch, found: list[Any]) -> Nvrtc | None:
    """Look among candidates that are a description, or the error that opening them raises."""

    def open_library(candidate: Any) -> Nvrtc:
        if isinstance(candidate, Exception):
            raise candidate
        result: Nvrtc = candidate
        return result

    monkeypatch.setattr(nvrtc, "library_candidates", lambda: iter(found))
    monkeypatch.setattr(nvrtc, "Nvrtc", open_library)
    look: Callable[[], Nvrtc | None] = find_nvrtc.__wrapped__
    return look()


def test_the_first_that_will_do_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    newest, good, spare = described((13, 0), {75}), described((12, 8), {70}), described((12, 9), {70})
    assert search(monkeypatch, [OSError("no ELF"), AttributeError("too old"), newest, good, spare]) is good
    assert search(monkeypatch, [OSError("absent"), newest]) is None
    assert search(monkeypatch, []) is None


def test_a_file_that_is_no_library_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "libnvrtc.so.12").write_text("not a library")
    with pytest.raises(OSError):
        Nvrtc(tmp_path / "libnvrtc.so.12")


@needs_nvrtc
def test_the_one_here() -> None:
    found = find_nvrtc()
    assert found is not None and str(found) == f"NVRTC 12.{found.version[1]}"
    compiled = found.compile('extern "C" __global__ void k() {}', "k.cu", {}, ["-arch=compute_70"])
    assert compiled.succeeded and ".entry k(" in compiled.ptx and compiled.cubin is None
    refused = found.compile("", "k.cu", {}, ["--no-such-option"])
    assert not refused.succeeded and "no-such-option" in refused.log


# --- toolkits and tools ---------------------------------------------------------------------------------------------


@pytest.fixture
def toolkit_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose only toolkit is the one in this folder."""
    monkeypatch.setattr(toolkit, "wheel_folders", lambda name: iter(()))
    monkeypatch.setattr(toolkit, "toolkit_folders", lambda: iter((tmp_path,)))
    monkeypatch.setattr(toolkit.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    return tmp_path


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_home_and_path_come_before_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", "/my/cuda")
    monkeypatch.setenv("CUDA_PATH", "/other/cuda")
    assert list(toolkit.toolkit_folders())[:2] == [Path("/my/cuda"), Path("/other/cuda")]


def test_libraries_of_a_toolkit(toolkit_in: Path) -> None:
    for name in ("libnvrtc.so.12", "libnvrtc-builtins.so.12.8", "libnvrtc.so.13"):
        (toolkit_in / "lib64").mkdir(exist_ok=True)
        (toolkit_in / "lib64" / name).touch()
    found = [str(candidate) for candidate in toolkit.library_candidates()]
    assert found == [str(toolkit_in / "lib64" / "libnvrtc.so.12"), "libnvrtc.so.12"]


def test_headers_of_a_toolkit(toolkit_in: Path) -> None:
    assert toolkit.header_folders.__wrapped__() == ()
    (toolkit_in / "include").mkdir()
    (toolkit_in / "include" / "cuda_fp16.h").touch()
    (toolkit_in / "include" / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  12060\n")
    assert toolkit.header_folders.__wrapped__() == (toolkit_in / "include",)
    assert toolkit.foreign_headers() is None


@pytest.mark.parametrize("version", ["13000", "11080"])
def test_headers_of_another_cuda_are_passed_over(toolkit_in: Path, version: str) -> None:
    (toolkit_in / "include").mkdir()
    (toolkit_in / "include" / "cuda_fp16.h").touch()
    assert toolkit.header_folders.__wrapped__() == ()  # of no version at all
    (toolkit_in / "include" / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION {version}\n")
    assert toolkit.header_folders.__wrapped__() == ()
    assert toolkit.foreign_headers() == toolkit_in / "include"


@needs_nvrtc
def test_a_compiler_without_its_builtins_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_nvrtc()
    assert found is not None and Path(found.path).is_file()
    shutil.copy(found.path, tmp_path)
    alone = tmp_path / Path(found.path).name
    monkeypatch.setattr(nvrtc, "library_candidates", lambda: iter([alone]))
    monkeypatch.setattr(Nvrtc, "builtins", "libnvrtc-builtins-of-nobody.so.12.8")
    assert find_nvrtc.__wrapped__() is None
    broken = nvrtc.incomplete_nvrtc()
    assert broken is not None and broken.path == str(alone)
    (tmp_path / "libnvrtc-builtins-of-nobody.so.12.8").touch()
    assert find_nvrtc.__wrapped__() is not None


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'Cuda compilation tools, release 12.8, V12.8.93'", True),
        ("echo 'Cuda compilation tools, release 13.0, V13.0.48'", False),
        ("echo 'Cuda compilation tools, release 11.8, V11.8.89'", False),
        ("echo something else", False),
        ("exit 1", False),
    ],
)
def test_tools_of_another_toolkit_are_passed_over(toolkit_in: Path, script: str, found: bool) -> None:
    path = program(toolkit_in / "bin" / "nvdisasm", script)
    assert toolkit.find_tool.__wrapped__("nvdisasm") == (path if found else None)


def test_a_later_place_may_have_the_right_version(toolkit_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(toolkit_in / "bin" / "ptxas", "echo 'release 13.0, V13.0.48'")
    right = program(toolkit_in / "path" / "ptxas", "echo 'release 12.6, V12.6.85'")
    monkeypatch.setenv("PATH", f"{toolkit_in / 'path'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    assert toolkit.find_tool.__wrapped__("ptxas") == right


def test_a_file_that_may_not_be_run_is_no_tool(toolkit_in: Path) -> None:
    program(toolkit_in / "bin" / "ptxas", "echo 'release 12.6, V12.6.85'").chmod(0o644)
    assert toolkit.find_tool.__wrapped__("ptxas") is None
