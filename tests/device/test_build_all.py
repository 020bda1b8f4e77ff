"""The shipped kernels: every rung compiles for the V100 without spilling, and what is written about them is current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.device.build_all import (
    SHIPPED_LIST,
    Row,
    Wanted,
    all_rungs,
    build_all,
    for_model,
    shipped,
    shipped_text,
)
from labkit.device.kernel_page import kernel_page
from labkit.device.ladder import Ladder
from labkit.device.nvrtc import find_nvrtc
from labkit.device.ptxas import assemble
from labkit.device.sass import disassemble, instructions
from labkit.device.sources import source_root
from labkit.device.toolkit import find_tool
from labkit.errors import KernelBuildError
from labkit.ops.ladders import LADDERS

ROOT = Path(__file__).resolve().parents[2]
needs_nvrtc = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return build_all(all_rungs(LADDERS.values()))


@needs_nvrtc
def test_no_kernel_spills(rows: list[Row]) -> None:
    assert {row.op for row in rows} == set(LADDERS)
    for row in rows:
        assert (row.spill_stores, row.spill_loads) == (0, 0), row.name
        assert 0 < row.registers <= 255
        assert row.occupancy, f"{row.name} does not fit a V100"


@needs_nvrtc
def test_names_are_unique(rows: list[Row]) -> None:
    assert len({row.name for row in rows}) == len(rows)


def test_ladders_are_the_folders_of_cuda() -> None:
    folders = {folder.name: folder for folder in source_root().iterdir() if any(folder.glob("*.cu"))}
    assert set(folders) == set(LADDERS)
    for op, ladder in LADDERS.items():
        assert ladder.op == op and ladder.default_macros and ladder.entries
        assert list(ladder.rungs) == sorted(file.stem for file in folders[op].glob("*.cu"))
        assert ladder.shipped == ladder.rungs[-1]


def test_sources_say_their_idea_and_the_cost_it_removes() -> None:
    for file in source_root().glob("*/*.cu"):
        first, second = file.read_text(encoding="utf-8").splitlines()[:2]
        assert first.startswith("// Idea: ") and second.startswith("// Removes "), file


def test_the_list_of_what_a_wheel_carries_is_current() -> None:
    text = (source_root() / SHIPPED_LIST).read_text(encoding="utf-8")
    assert text == shipped_text(all_rungs(LADDERS.values())), "run `make kernel-page`"
    again = shipped(source_root())
    assert [(w.op, w.rung, w.entries) for w in again] == [
        (w.op, w.rung, w.entries) for w in all_rungs(LADDERS.values())
    ]


@needs_nvrtc
def test_the_page_about_kernels_is_current(rows: list[Row]) -> None:
    page = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    compiler = re.search(r"NVRTC 12\.\d+", page)
    assert compiler is not None
    if compiler[0] != str(find_nvrtc()):
        pytest.skip(f"the page was made by {compiler[0]}, which may count other registers")
    assert page == kernel_page(rows, compiler[0]), "run `make kernel-page`"


def test_a_model_needs_the_shipped_rungs_only() -> None:
    def wanted(config: object, tp_size: int, kv_cache_dtype: str) -> list[dict[str, int | str]]:
        return [{"A": tp_size, "B": kv_cache_dtype}]

    ladder = Ladder("one", ("1_slow", "2_fast"), ("k",), specialisations=wanted)
    assert for_model([ladder], object(), 2, "int8") == [Wanted("one", "2_fast", {"A": 2, "B": "int8"}, ("k",))]
    assert for_model([Ladder("two", ("1_slow",), ("k",))], object(), 1, "auto") == []
    assert len(all_rungs([ladder])) == 2


@pytest.mark.parametrize("arch", ["sm_61", "sm_7", "compute_90", "v100", ""])
def test_architectures_that_are_refused(arch: str) -> None:
    with pytest.raises(KernelBuildError, match="sm_70, compute_70"):
        build_all([], arch)


@needs_nvrtc
def test_progress_is_told(operations: Path, cache_folder: Path) -> None:
    told: list[tuple[int, int, str]] = []
    wanted = [Wanted("scale", rung, {"WIDTH": 1}, ("scale",)) for rung in ("1_plain", "2_same")]
    build_all(wanted, progress=lambda *what: told.append(what))
    assert told == [(0, 2, "scale/1_plain"), (1, 2, "scale/2_same")]


@needs_nvrtc
def test_block_size_is_that_of_the_launch_bounds(operations: Path, cache_folder: Path) -> None:
    bounded, free = build_all([Wanted("scale", "1_plain", {"WIDTH": 1}, ("scale", "fill"))])
    assert (bounded.block_threads, free.block_threads) == (256, 256)
    assert bounded.name == "scale/1_plain:scale WIDTH=1" and bounded.occupancy == 1.0


@needs_nvrtc
def test_an_entry_that_is_not_there(operations: Path, cache_folder: Path) -> None:
    with pytest.raises(KernelBuildError, match="'scales'") as caught:
        build_all([Wanted("scale", "1_plain", {"WIDTH": 1}, ("scales",))])
    assert "fill" in caught.value.cure


@needs_nvrtc
def test_a_folder_that_cannot_be_written(operations: Path, cache_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KernelBuildError, match="cannot be written"):
        build_all([Wanted("scale", "1_plain", {"WIDTH": 1}, ("scale",))], out=tmp_path / "file")


# --- assembler and disassembler -------------------------------------------------------------------------------------


@pytest.mark.skipif(find_tool("ptxas") is None, reason="no ptxas of CUDA 12 here")
def test_the_assembler_says_what_is_wrong() -> None:
    with pytest.raises(KernelBuildError, match="mine/1_bad for sm_90") as caught:
        assemble(".version 8.0\n.target sm_70\n.address_size 64\nnonsense\n", "sm_90", op="mine", rung="1_bad")
    assert caught.value.log and caught.value.op == "mine"


def test_without_an_assembler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.device.ptxas.find_tool", lambda name: None)
    with pytest.raises(KernelBuildError, match="nvidia-cuda-nvcc-cu12"):
        assemble("", "sm_90")


def test_without_a_disassembler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.device.sass.find_tool", lambda name: None)
    with pytest.raises(KernelBuildError, match="triton"):
        disassemble(b"")


def test_machine_code_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a program in nvdisasm's place: what it is given, and how its answer is read."""
    fake = tmp_path / "nvdisasm"
    code = "/*0000*/                   MOV R1, c[0x0][0x28] ;  /* 0x00000a0000017a02 */"
    answer = f".text.k:\\n/*0000*/ .byte 0xff, 0xff\\n        {code}\\n"
    fake.write_text(f"#!/bin/sh\ngrep -q ELF $2 || {{ echo no cubin >&2; exit 1; }}\nprintf '{answer}.L_x_0:\\n'\n")
    fake.chmod(0o755)
    monkeypatch.setattr("labkit.device.sass.find_tool", lambda name: fake)
    assert instructions(disassemble(b"\x7fELF")) == ["MOV R1, c[0x0][0x28]"]
    with pytest.raises(KernelBuildError, match="no cubin"):
        disassemble(b"nothing")
