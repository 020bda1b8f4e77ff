"""Kernels carried to another machine: found by name and source, refused when they do not belong to it."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cuda_sources import forget_kernels

from labkit.device import Kernel, image
from labkit.device.build_all import Wanted, build_all
from labkit.device.carried import MANIFEST, Image, KernelFolder
from labkit.device.kernel_folder import write_folder
from labkit.device.nvrtc import Nvrtc, find_nvrtc
from labkit.device.resources import Resources
from labkit.device.sources import Source, read_rung
from labkit.device.toolkit import find_tool
from labkit.errors import KernelBuildError

pytestmark = [
    pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here"),
    pytest.mark.usefixtures("cache_folder"),
]
WANTED = [Wanted("scale", "1_plain", {"WIDTH": width}, ("scale", "fill")) for width in (1, 2)]


@pytest.fixture
def folder(operations: Path, tmp_path: Path) -> Path:
    """A folder with scale/1_plain for two widths."""
    build_all(WANTED, "sm_70", tmp_path / "kernels")
    return tmp_path / "kernels"


def hide_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("image", "compile"):
        monkeypatch.setattr(f"labkit.device.{module}.find_nvrtc", lambda: None)
    forget_kernels()


def run(width: int = 1, rung: str = "1_plain") -> None:
    x, y = torch.randn(40), torch.zeros(40)
    Kernel("scale", rung, "scale", {"WIDTH": width}).launch(1, 64, [x, y, 1.0, 40])
    assert torch.equal(y, 2 * x)


def test_a_carried_kernel_runs_without_a_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_compilers(monkeypatch)
    with pytest.raises(KernelBuildError, match="no NVRTC") as caught:
        run()
    assert "LABKIT_KERNEL_DIR" in caught.value.cure
    monkeypatch.setenv("LABKIT_KERNEL_DIR", str(folder))
    run(1)
    run(2)


def test_the_folder_comes_before_the_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_KERNEL_DIR", str(folder))
    monkeypatch.setattr(Nvrtc, "compile", None)
    monkeypatch.setenv("LABKIT_CACHE", "/nowhere")
    forget_kernels()
    run()


def test_what_was_built_is_what_is_found(folder: Path) -> None:
    source = read_rung("scale", "1_plain")
    found = KernelFolder(folder).find("scale", "1_plain", {"WIDTH": "2"}, source)  # text or number, the same macro
    built = image.build_image("scale", "1_plain", {"WIDTH": 2}, source)
    assert found == built
    assert found is not None and set(found.cubins) == {"sm_70"} and found.resources["sm_70"]["scale"].registers > 0
    assert KernelFolder(folder).find("scale", "1_plain", {"WIDTH": 3}, source) is None
    assert KernelFolder(folder).find("scale", "2_same", {"WIDTH": 2}, source) is None


@pytest.mark.parametrize("changed", ["scale/1_plain.cu", "common/twice.cuh"])
def test_a_changed_source_is_compiled_anew_or_refused(
    folder: Path, operations: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    monkeypatch.setenv("LABKIT_KERNEL_DIR", str(folder))
    path = operations / changed
    path.write_text(path.read_text() + "// another version\n")
    forget_kernels()
    run()  # by the compiler that is here
    hide_compilers(monkeypatch)
    with pytest.raises(KernelBuildError, match="made from another version of its source"):
        run()


def test_what_is_not_carried_says_what_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_KERNEL_DIR", str(folder))
    hide_compilers(monkeypatch)
    with pytest.raises(KernelBuildError, match=r"'WIDTH': '1'.*'WIDTH': '2'"):
        run(7)
    with pytest.raises(KernelBuildError, match="none of its builds"):
        run(1, "2_same")


def test_a_wheel_carries_ptx(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_all(WANTED[:1], "compute_70", tmp_path / "wheel")
    assert not list((tmp_path / "wheel").glob("*.cubin"))
    monkeypatch.setattr(image, "WHEEL_FOLDER", tmp_path / "wheel")
    hide_compilers(monkeypatch)
    run()
    monkeypatch.setenv("LABKIT_KERNEL_DIR", str(folder))  # and beside it a folder that has more
    forget_kernels()
    run(1)
    run(2)


@pytest.mark.parametrize("suffix", ["ptx", "cubin"])
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_damaged_files_are_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, damage: str) -> None:
    """Machine code when a GPU asks for it: the simulator does without."""
    for file in folder.glob(f"*.{suffix}"):
        if damage == "missing":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-3] + b"   ")
    monkeypatch.setenv("LABKIT_KERNEL_DIR", str(folder))
    forget_kernels()
    if suffix == "cubin":
        run()
    with pytest.raises(KernelBuildError, match="is damaged" if damage == "changed" else "cannot be read"):
        Kernel("scale", "1_plain", "scale", {"WIDTH": 1}).image.cubins["sm_70"]


def test_without_headers_the_wheel_is_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC alone does not compile a kernel that includes cuda_fp16.h."""
    for module in ("image", "compile"):
        monkeypatch.setattr(f"labkit.device.{module}.header_folders", lambda: ())
    forget_kernels()
    with pytest.raises(KernelBuildError, match="headers are missing"):
        run()
    monkeypatch.setattr(image, "WHEEL_FOLDER", folder)
    run()


def test_a_folder_that_was_written_anew(folder: Path, operations: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has read the old manifest finds the new kernels; files of the old ones are gone, others stay."""
    opened, before_edit = KernelFolder(folder), read_rung("scale", "1_plain")
    before = {file.name for file in folder.iterdir()}
    (folder / "notes.txt").write_text("of the user's")
    path = operations / "scale/1_plain.cu"
    path.write_text(path.read_text().replace("factor;", "factor + 1.0f;"))
    build_all(WANTED[:1], "compute_70", folder)
    assert {file.name for file in folder.iterdir()} & before == {MANIFEST}
    assert (folder / "notes.txt").is_file() and len(list(folder.glob("*.ptx"))) == 1
    again = opened.find("scale", "1_plain", {"WIDTH": 1}, before_edit)
    assert again is None and opened.carried("scale", "1_plain") == [{"WIDTH": "1"}]
    assert opened.find("scale", "1_plain", {"WIDTH": 1}, read_rung("scale", "1_plain")) is not None


RECORD: dict[str, Any] = {
    "op": "scale",
    "rung": "1_plain",
    "macros": {"WIDTH": "1"},
    "source": "0",
    "files": {"compute_70": {"name": "a.ptx", "sha256": "0"}},
    "resources": {"sm_70": {"k": Resources(1, 0, 0, 0, 0, 0).to_dict()}},
}
DAMAGE: dict[str, Any] = {
    "record": [],
    "op": 5,
    "macros": {"WIDTH": 1},
    "source": None,
    "files": {},
    "no name": {"compute_70": {"sha256": "0"}},
    "path": {"compute_70": {"name": "../a.ptx", "sha256": "0"}},
    "resources": {"sm_70": {"k": {"registers": 1}}},
}


@pytest.mark.parametrize("field", DAMAGE)
def test_records_are_checked_when_they_are_read(tmp_path: Path, field: str) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps({"format": 1, "compiler": "", "kernels": [RECORD]}))
    assert KernelFolder(tmp_path).carried("scale", "1_plain") == [{"WIDTH": "1"}]
    name = "files" if field in ("no name", "path") else field
    record = DAMAGE[field] if field == "record" else {**RECORD, name: DAMAGE[field]}
    (tmp_path / MANIFEST).write_text(json.dumps({"format": 1, "compiler": "", "kernels": [record]}))
    with pytest.raises(KernelBuildError, match="no manifest of kernels"):
        KernelFolder(tmp_path)


def _write(folder: Path, op: str, count: int) -> None:
    image = Image("ptx" * 50, {}, {"sm_70": {}}, "c")
    for _ in range(20):
        records = [({"A": number}, Source("x", op), image) for number in range(count)]
        write_folder(folder, "c", {(op, "r"): records})


def test_processes_may_write_one_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(tmp_path, op, count)) for op, count in (("a", 3), ("b", 60))]
    for writer in writers:
        writer.start()
    whole = 0
    while any(writer.is_alive() for writer in writers):
        if (tmp_path / MANIFEST).is_file():
            opened = KernelFolder(tmp_path)
            found = [opened.find(op, "r", {"A": 0}, Source("x", op)) for op in "ab"]
            whole += any(found)
    for writer in writers:
        writer.join(timeout=60)
        assert writer.exitcode == 0
    assert whole
    files = {file.name for file in tmp_path.iterdir()}
    named = json.loads((tmp_path / MANIFEST).read_text())["kernels"]
    assert files == {MANIFEST, *(file["name"] for record in named for file in record["files"].values())}


@pytest.mark.parametrize(
    "content",
    [
        *(None, "{", "[]", '{"format": 1}', '{"format": "1", "kernels": [], "compiler": ""}'),
        *(
            '{"format": 99, "kernels": [], "compiler": ""}',
            '{"format": 1, "kernels": {}, "compiler": ""}',
            "[" * 99_999,
        ),
    ],
)
def test_broken_manifests_are_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(KernelBuildError, match=MANIFEST) as caught:
        KernelFolder(tmp_path)
    assert "labkit build --out" in caught.value.cure


@pytest.mark.skipif(find_tool("ptxas") is None, reason="no ptxas of CUDA 12 here")
def test_a_newer_gpu_gets_machine_code_from_the_same_ptx(operations: Path, tmp_path: Path) -> None:
    rows = build_all(WANTED[:1], "sm_90", tmp_path / "newer")
    assert [row.arch for row in rows] == ["sm_90", "sm_90"] and all(row.occupancy is None for row in rows)
    found = KernelFolder(tmp_path / "newer").find("scale", "1_plain", {"WIDTH": 1}, read_rung("scale", "1_plain"))
    assert found is not None and set(found.cubins) == {"sm_90"} and ".target sm_70" in found.ptx
    manifest: dict[str, Any] = json.loads((tmp_path / "newer" / MANIFEST).read_text())
    assert manifest["kernels"][0]["resources"].keys() == {"sm_70", "sm_90"}
