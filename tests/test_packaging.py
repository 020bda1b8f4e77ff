"""What is shipped and how it is installed: environments, pins, extras, the make targets, the size of the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
TARGETS = {
    *("help", "demo", "lab", "serve", "doctor", "build", "kernel-page"),
    *("test", "test-slow", "test-gpu", "format", "clean"),
}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pip_lines(environment: str) -> tuple[list[str], list[str]]:
    """The conda and the pip dependencies of an environment file."""
    content = yaml.safe_load((ROOT / environment).read_text(encoding="utf-8"))
    conda = [entry for entry in content["dependencies"] if isinstance(entry, str)]
    [pip] = [entry["pip"] for entry in content["dependencies"] if isinstance(entry, dict)]
    assert content["channels"][0] == "conda-forge"
    return conda, pip


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9A-Za-z.]+", pin) for pin in pins)
    names = [re.sub(r"[-_.]+", "-", pin.partition("==")[0]).lower() for pin in pins]
    assert len(set(names)) == len(names)
    return dict(zip(names, (pin.partition("==")[2] for pin in pins), strict=True))


def test_extras() -> None:
    assert set(project()["optional-dependencies"]) == {"gpu", "serve", "notebooks", "ray", "docs", "test"}
    assert project()["name"] == "labkit-v100"
    assert project()["requires-python"] == ">=3.11"
    assert "torch>=2.10,<3" in project()["dependencies"]


def test_core_needs_no_extra() -> None:
    text = " ".join(project()["dependencies"])
    assert not re.search(r"cupy|fastapi|jupyter|ipywidgets|plotly|pandas|transformers", text)


def test_v100_environment_pins_what_still_has_sm_70() -> None:
    conda, pip = pip_lines("environment.yml")
    assert "python=3.12" in conda
    assert "torch==2.10.0" in pip
    assert any(re.fullmatch(r"cupy-cuda12x==1[34]\.\d+\.\d+", line) for line in pip)
    assert any(re.fullmatch(r"nvidia-cuda-nvrtc-cu12==12\.8\.\d+", line) for line in pip)
    assert any(re.fullmatch(r"nvidia-cuda-runtime-cu12==12\.8\.\d+", line) for line in pip)
    assert "-e .[gpu,serve,notebooks]" in pip
    assert not re.search(r"cu13|cuda13", " ".join(pip))
    assert "Not built on a V100" in (ROOT / "environment.yml").read_text(encoding="utf-8")


def test_binder_environment_is_for_the_cpu() -> None:
    conda, pip = pip_lines(".binder/environment.yml")
    assert "python=3.11" in conda
    assert not re.search(r"cupy|nvidia|gpu", " ".join(pip))
    folder = ROOT / ".binder"
    [constraint] = [line.removeprefix("-c ") for line in pip if line.startswith("-c ")]
    [editable] = [line.removeprefix("-e ") for line in pip if line.startswith("-e ")]
    assert (folder / constraint).resolve() == ROOT / "constraints.txt"
    assert editable.endswith("[notebooks]")
    assert (folder / editable.removesuffix("[notebooks]")).resolve() == ROOT


def test_constraints_pin_what_is_tested() -> None:
    pins = constraints()
    assert pins["torch"] == "2.13.0"
    extras = project()["optional-dependencies"]
    needed = [*project()["dependencies"], *extras["serve"], *extras["notebooks"], *extras["test"]]
    for requirement in needed:
        name = re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~ ]", requirement)[0]).lower()
        assert name in pins or name == "labkit-v100", f"{name} is not pinned"


def test_the_compiler_comes_with_labkit_where_there_is_one() -> None:
    """CUDA 12 and never 13, which does not know sm_70; nothing of it where NVIDIA has no wheels."""
    needed = {
        match[1]: (match[2], match[3])
        for requirement in project()["dependencies"]
        if (match := re.fullmatch(r"(nvidia-[a-z0-9-]+)(\S+); (.+)", requirement))
    }
    assert set(needed) == {f"nvidia-cuda-{part}-cu12" for part in ("nvrtc", "runtime", "cccl")}
    for versions, marker in needed.values():
        assert versions == ">=12.4,<13"
        assert "sys_platform != 'darwin'" in marker and "x86_64 AMD64" in marker
    pins = constraints()
    assert pins["nvidia-cuda-nvrtc-cu12"] == pins["nvidia-cuda-nvcc-cu12"] == "12.8.93"
    assert pins["nvidia-cuda-runtime-cu12"] == pins["nvidia-cuda-cccl-cu12"] == "12.8.90"
    assert "cuda-bindings" not in " ".join(project()["dependencies"])  # of version 13 beside a torch for CUDA 13


def test_only_wheels_need_the_compiler_to_be_built() -> None:
    """An editable install, which `make` does, compiles nothing and shall fetch no compiler for it."""
    hooks = ("get_requires_for_build_editable", "get_requires_for_build_wheel")
    code = "import build_backend as b\n" + "\n".join(f"print(b.{hook}({{}}))" for hook in hooks)
    settings = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT / "tools")}, "timeout": 120}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, **settings)
    editable, wheel = (line for line in done.stdout.splitlines() if line.startswith("["))
    pins = constraints()
    for name in ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12"):
        assert name not in editable and f"{name}=={pins[name]};" in wheel


def test_cuda_folder_stays_a_namespace() -> None:
    """With an __init__.py it would hide NVIDIA's ``cuda`` package from every import in a checkout."""
    assert not (ROOT / "cuda" / "__init__.py").exists()


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_tracked_tree_is_small() -> None:
    assert sum(path.stat().st_size for path in tracked()) < 50e6


def test_notebooks_are_small() -> None:
    for path in tracked():
        if path.suffix == ".ipynb":
            assert path.stat().st_size < 200_000, path.name


def test_licence() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert project()["license"] == "Apache-2.0"


# --- make -----------------------------------------------------------------------------------------------------------

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@needs_make
def test_make_without_a_target_lists_all_of_them() -> None:
    done = make()
    assert done.returncode == 0
    assert set(re.findall(r"^  make (\S+)", done.stdout, flags=re.MULTILINE)) == TARGETS


@needs_make
@pytest.mark.parametrize(("target", "package"), [("demo", "."), ("lab", ".[notebooks]"), ("test", ".[test]")])
def test_first_run_installs_and_second_does_not(target: str, package: str, tmp_path: Path) -> None:
    venv = f"VENV={tmp_path}/venv"
    first = make("-n", target, venv).stdout
    assert f"pip install -c constraints.txt  -e '{package}'" in first
    assert "-m venv" in first
    [stamp] = set(re.findall(rf"touch ({re.escape(str(tmp_path))}\S+)", first))
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").touch()
    Path(stamp).touch()
    second = make("-n", target, venv).stdout
    assert second and "pip install" not in second and "-m venv" not in second


@needs_make
def test_an_old_python_is_refused_in_words(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo Python 3.9.18; else exit 1; fi\n')
    old.chmod(0o755)
    done = make("demo", f"VENV={tmp_path}/venv", f"PYTHON={old}")
    assert done.returncode != 0
    assert "3.11 or later" in done.stderr and "Python 3.9.18" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "set -euo pipefail" in script.read_text() and "make test" in script.read_text()
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_the_tree_names_no_registry_host() -> None:
    """Where packages come from is the user's own setting."""
    names = ("Makefile", "constraints.txt", "environment.yml", ".binder/environment.yml", "pyproject.toml", ".ci/run")
    for name in names:
        assert not re.search(r"https?://", (ROOT / name).read_text(encoding="utf-8")), name


def test_an_editable_install_is_found_from_the_folder_above_it(tmp_path: Path) -> None:
    """A checkout called labkit is no package itself: Python started above it must still find the one inside."""
    code = "import build_backend as b, sys; print(b.build_editable(sys.argv[1]))"
    settings = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT / "tools")}, "timeout": 120}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as wheel:
        [path] = [name for name in wheel.namelist() if name.endswith(".pth")]
        assert wheel.read(path).decode().strip() == str(ROOT)
