"""A wheel built from the tree and installed outside of it: commands, kernels, and the simulator without a compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from labkit.device.build_all import shipped
from labkit.device.nvrtc import find_nvrtc
from labkit.device.sources import source_root

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")]

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("labkit", "serve", "cuda", "tools", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
HIDE_NVRTC = "from labkit.device import toolkit\ntoolkit.library_candidates = lambda: iter(())\n"
NORMALISE = """
import torch
from labkit.device import Kernel, Out
from labkit.device.build_all import shipped
from labkit.device.sources import source_root
wanted = next(each for each in shipped(source_root()) if each.op == "rmsnorm")
hidden, threads = int(wanted.macros["HIDDEN"]), int(wanted.macros["THREADS"])
x, weight, y = torch.randn(3, hidden).half(), torch.rand(hidden), torch.empty(3, hidden).half()
Kernel("rmsnorm", wanted.rung, "rmsnorm", wanted.macros).launch(3, threads, [x, weight, Out(y), 1e-6])
exact = torch.nn.functional.rms_norm(x.double(), (hidden,), weight.double(), 1e-6)
print(float((y.double() - exact).abs().max() / exact.abs().max()))
"""


def run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LABKIT_KERNEL_DIR")}
    environment = {**kept, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1", **variables}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@dataclass(frozen=True)
class Installed:
    """A wheel, and an environment that has it."""

    wheel: Path
    folder: Path  # outside the checkout
    python: Path

    def labkit(self, *arguments: str) -> str:
        cache = {"LABKIT_CACHE": str(self.folder / "cache")}
        return run([str(self.python.with_name("labkit")), *arguments], self.folder, **cache).stdout

    def execute(self, code: str) -> str:
        return run([str(self.python), "-c", code], self.folder, LABKIT_CACHE=str(self.folder / "cache")).stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    tree.mkdir()
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
        copy(ROOT / part, tree / part)
    pip = [sys.executable, "-m", "pip"]
    wheel_command = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(tree)]
    run(wheel_command, folder, LABKIT_CACHE=str(folder / "cache"))
    shutil.rmtree(tree)
    [wheel] = folder.glob("*.whl")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], folder)
    python = folder / "venv" / "bin" / "python"
    [packages] = (folder / "venv" / "lib").glob("python3*/site-packages")
    # What labkit needs comes from this environment. Its own .pth files are not followed, so labkit itself does not.
    (packages / "needs.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    run([*pip, "--python", str(python), "install", "-q", "--no-deps", "--no-index", str(wheel)], folder)
    outside = folder / "outside"
    outside.mkdir()
    return Installed(wheel, outside, python)


def test_it_is_the_installed_one(installed: Installed) -> None:
    where = installed.execute("import labkit; print(labkit.__file__)").strip()
    assert where.startswith(str(installed.python.parents[1]))


def test_the_wheel_carries_sources_and_ptx(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    files = {path.relative_to(source_root()).as_posix() for path in source_root().rglob("*") if path.is_file()}
    assert {f"labkit/_cuda/{file}" for file in files} <= set(names)
    assert not any(name.startswith("cuda/") for name in names), "that folder belongs to NVIDIA's packages"
    manifest = json.loads(zipfile.ZipFile(installed.wheel).read("labkit/_ptx/manifest.json"))
    assert len(manifest["kernels"]) == len(shipped(source_root()))
    named = {file["name"] for kernel in manifest["kernels"] for file in kernel["files"].values()}
    carried = {Path(name).name for name in names if name.endswith(".ptx")}
    assert carried == named, "a file holds what several specialisations share"
    assert not any(str(ROOT).encode() in zipfile.ZipFile(installed.wheel).read(name) for name in names), "no paths"


def test_commands(installed: Installed) -> None:
    kernels = json.loads(installed.labkit("build", "--json"))["kernels"]
    assert {kernel["op"] for kernel in kernels} == {wanted.op for wanted in shipped(source_root())}
    report = json.loads(installed.labkit("doctor", "--json"))
    assert report["ok_to_learn"]
    said = installed.labkit("generate", "-m", "labkit-tiny", "-p", "Once", "--max-tokens", "2", "--json")
    assert json.loads(said)


@pytest.mark.parametrize("compiler", ["there", "hidden"])
def test_the_simulator_runs_a_shipped_kernel(installed: Installed, compiler: str) -> None:
    hide = HIDE_NVRTC if compiler == "hidden" else ""
    assert float(installed.execute(hide + NORMALISE)) < 1e-3


def test_without_a_compiler_other_sizes_are_refused_with_a_cure(installed: Installed) -> None:
    code = HIDE_NVRTC + (
        "from labkit.device import Kernel\nfrom labkit.errors import KernelBuildError\n"
        "try:\n    Kernel('rmsnorm', '3_vector', 'rmsnorm', {'HIDDEN': 12345}).image\n"
        "except KernelBuildError as error:\n    print(error)\n"
    )
    told = installed.execute(code)
    assert "HIDDEN" in told and "nvidia-cuda-nvrtc-cu12" in told and "LABKIT_KERNEL_DIR" in told


def test_without_a_compiler_no_wheel_is_built_unless_asked(tmp_path: Path) -> None:
    """The step of the build that compiles, in a process that finds no NVRTC."""
    code = (
        "import sys, types\nimport setuptools\nsetuptools.setup = lambda **ignored: None\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n{HIDE_NVRTC}import setup\nfrom pathlib import Path\n"
        f"setup.carry_ptx(Path({str(tmp_path / 'ptx')!r}))\n"
    )
    refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert refused.returncode == 1 and "nvidia-cuda-nvrtc-cu12" in refused.stderr
    assert "LABKIT_WHEEL_WITHOUT_PTX=1" in refused.stderr
    run([sys.executable, "-c", code], tmp_path, LABKIT_WHEEL_WITHOUT_PTX="1")
    assert not (tmp_path / "ptx").exists()
