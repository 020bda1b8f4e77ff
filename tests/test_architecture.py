"""The layers import downward only, and the core runs without server, notebook, GPU or oracle packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.models import llama, random_ids, saved

ROOT = Path(__file__).resolve().parents[1]
OPTIONAL = (
    "cupy",
    "fastapi",
    "uvicorn",
    "pydantic",
    "jupyter",
    "IPython",
    "ipywidgets",
    "pandas",
    "plotly",
    "transformers",
)


def python(code: str, *, blocked: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter in which some packages cannot be imported."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    absent = f"import sys\nsys.modules.update(dict.fromkeys({blocked!r}))\n"  # None there means: no such module
    command = [sys.executable, "-c", absent + code]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_imports_point_downward_only() -> None:
    done = python("from importlinter.cli import lint_imports\nsys.exit(lint_imports(no_cache=True))")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Contracts: 2 kept, 0 broken." in done.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("labkit/ops/rmsnorm.py", "from labkit.engine import scheduler"),
        ("labkit/engine/scheduler.py", "import labkit.cli"),
        ("labkit/model/llama.py", "import transformers"),
    ],
)
def test_the_linter_notices_an_upward_import(tmp_path: Path, module: str, line: str) -> None:
    for folder in ("labkit", "serve"):
        for file in (ROOT / folder).rglob("*.py"):
            copy = tmp_path / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    target = tmp_path / module
    target.write_text(f"{target.read_text(encoding='utf-8')}\n{line}\n", encoding="utf-8")
    lint = f"import os\nos.chdir({str(tmp_path)!r})\nsys.path.insert(0, {str(tmp_path)!r})\n"
    done = python(lint + "from importlinter.cli import lint_imports\nsys.exit(lint_imports(no_cache=True))")
    assert done.returncode == 1 and "1 broken" in done.stdout, done.stdout + done.stderr


def test_the_core_runs_without_any_extra(tmp_path: Path, seed: int) -> None:
    path, ids = saved(llama(), tmp_path), random_ids(160, 5)
    code = f"""
from labkit import LLM, SamplingParams
with LLM({str(path)!r}, dtype="float32") as llm:
    [output] = llm.generate({ids}, SamplingParams(temperature=0, max_tokens=3))
print(len(output.token_ids), [name for name in {OPTIONAL!r} if sys.modules[name]])
"""
    done = python(code, blocked=OPTIONAL)
    assert (done.returncode, done.stdout) == (0, "3 []\n"), done.stderr


@pytest.mark.parametrize("package", ["transformers", "pandas"])
def test_a_blocked_package_is_really_blocked(package: str) -> None:
    done = python(f"import {package}", blocked=OPTIONAL)
    assert done.returncode == 1 and f"import of {package} halted" in done.stderr


def test_serving_without_its_extra_names_the_cure() -> None:
    code = "sys.argv = ['labkit', 'serve', '-m', 'labkit-tiny']\nfrom labkit.cli import main\nmain()"
    done = python(code, blocked=("fastapi", "uvicorn"))
    assert done.returncode == 1 and done.stderr.startswith("labkit: ") and done.stderr.count("\n") == 1
    assert "pip install 'labkit-v100[serve]'" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["generate", "--help"], ["serve", "--help"], ["bench", "run", "--help"]]
)
def test_help_imports_no_torch(arguments: list[str]) -> None:
    code = f"""
sys.argv = ["labkit", *{arguments!r}]
from labkit.cli import main
try:
    main()
finally:
    print("LOADED", sorted({{"torch", "numpy", "tokenizers"}} & set(sys.modules)))
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert "LOADED []" in done.stdout and "Usage:" in done.stdout


def test_the_scheduler_is_plain_python() -> None:
    code = "import labkit.engine.scheduler, labkit.engine.sampling_params\nprint({'torch', 'numpy'} & set(sys.modules))"
    assert python(code).stdout == "set()\n"
