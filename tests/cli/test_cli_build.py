"""``labkit build``: the table, the document, the folder, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command_line import ENVIRONMENT, ROOT, Cli, refused

from labkit.device.carried import MANIFEST
from labkit.device.nvrtc import find_nvrtc
from labkit.device.toolkit import find_tool
from labkit.ops.ladders import LADDERS

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")
FIELDS = {"name", "registers", "spill_stores", "spill_loads", "shared_bytes", "occupancy", "main_loop"}


def test_json_lists_every_kernel(cli: Cli) -> None:
    ended = cli("build", "--json")
    assert (ended.code, ended.err) == (0, "")
    kernels = json.loads(ended.out)["kernels"]
    expected = sum(len(each.rungs) * len(each.entries) * len(each.default_macros) for each in LADDERS.values())
    assert len(kernels) == expected
    for kernel in kernels:
        assert set(kernel) >= FIELDS
        assert kernel["spill_stores"] == kernel["spill_loads"] == 0
        assert 0 < kernel["occupancy"] <= 1 and kernel["arch"] == "sm_70"


def test_table_fits_a_terminal_of_80_columns(cli: Cli) -> None:
    ended = cli("build")
    assert (ended.code, ended.err) == (0, "")
    assert all(len(line) <= 80 for line in ended.out.splitlines())
    assert "\n  3_vector:rmsnorm " in ended.out and "occupancy" in ended.out
    macros = "ZERO_CENTERED=0"
    assert ended.out.count(f"rmsnorm  HIDDEN=5120 THREADS=256 VEC=8 {macros}\n") == 1


def test_main_loops_by_kind_of_work(cli: Cli) -> None:
    ended = cli("build", "--mix", "--model", "labkit-tiny")
    assert (ended.code, ended.err) == (0, "")
    assert all(len(line) <= 80 for line in ended.out.splitlines())
    assert "    loop: tensor 512  shared 34" in ended.out and "    no loop\n" in ended.out


def test_other_gpus_have_other_machine_code(cli: Cli) -> None:
    refused(cli("build", "--mix", "--arch", "sm_90"), "sm_70")


def test_a_model_by_name(cli: Cli) -> None:
    """Two ranks split the heads, so their kernels are other specialisations."""

    def builds(*arguments: str) -> list[dict[str, object]]:
        ended = cli("build", "--json", "--model", *arguments)
        assert ended.code == 0, ended.err
        kernels: list[dict[str, object]] = json.loads(ended.out)["kernels"]
        return kernels

    alone, halved = builds("Qwen3.5-27B"), builds("random:Qwen3.5-27B", "--tp-size", "2")
    assert {kernel["rung"] for kernel in alone} <= {rung for ladder in LADDERS.values() for rung in ladder.in_use}
    assert {str(kernel["macros"]) for kernel in alone} != {str(kernel["macros"]) for kernel in halved}
    assert builds("labkit-tiny")


@pytest.mark.skipif(find_tool("ptxas") is None, reason="no ptxas of CUDA 12 here")
@pytest.mark.parametrize(
    ("arch", "kinds"), [("sm_70", {"ptx", "sm_70"}), ("compute_70", {"ptx"}), ("sm_90", {"ptx", "sm_90"})]
)
def test_a_folder_for_another_machine(cli: Cli, tmp_path: Path, arch: str, kinds: set[str]) -> None:
    ended = cli("build", "-m", "labkit-tiny", "--arch", arch, "--out", str(tmp_path / "kernels"))
    assert ended.code == 0, ended.err
    assert "LABKIT_KERNEL_DIR" in ended.out
    names = [file.name.split(".") for file in (tmp_path / "kernels").iterdir() if file.name != MANIFEST]
    assert {parts[1] for parts in names} == kinds
    manifest = json.loads((tmp_path / "kernels" / MANIFEST).read_text())
    assert {record["op"] for record in manifest["kernels"]} >= {"rmsnorm"}
    assert manifest["compiler"] == str(find_nvrtc())


def test_a_folder_at_home(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    ended = cli("build", "-m", "labkit-tiny", "--arch", "compute_70", "--out", "~/kernels")
    assert ended.code == 0, ended.err
    assert (tmp_path / "kernels" / MANIFEST).is_file()


def test_refusals(cli: Cli, tmp_path: Path) -> None:
    refused(cli("build", "--arch", "sm_61"), "sm_61", "sm_70")
    refused(cli("build", "--model", "random:Qwen9"), "Qwen9", "Known by name")
    refused(cli("build", "--model", str(tmp_path / "nowhere")), "nowhere")
    refused(cli("build", "--model", "labkit-tiny", "--kv-cache-dtype", "int7"), "int7", "int8")
    refused(cli("build", "--out", ""), "--out")
    refused(cli("build", "--tp-size", "2"), "--model")
    refused(cli("build", "--kv-cache-dtype", "fp16"), "--model")
    refused(cli("build", "--model", "Qwen3.5-27B", "--tp-size", "5"), "num_attention_heads", "--tp-size")
    (tmp_path / "file").touch()
    refused(cli("build", "--model", "labkit-tiny", "--out", str(tmp_path / "file")), "cannot be written", "--out")
    assert cli("build", "--tp-size", "0").code == 2


def test_without_a_compiler_the_cure_is_named() -> None:
    """In a process that finds no NVRTC."""
    code = (
        "import sys\nfrom labkit.device import toolkit\n"
        "toolkit.library_candidates = lambda: iter(())\n"
        "sys.argv = ['labkit', 'build']\nfrom labkit.cli import main\nmain()\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and done.stderr.startswith("labkit: ") and done.stderr.count("\n") == 1
    assert "nvidia-cuda-nvrtc-cu12" in done.stderr and done.stdout == ""
