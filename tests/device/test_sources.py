"""Which headers belong to a source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.device.nvrtc import find_nvrtc
from labkit.device.sources import collect, read_rung, source_root
from labkit.errors import KernelBuildError


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".cuh").write_text(text)
    return root


def test_headers_of_headers(tmp_path: Path) -> None:
    root = tree(tmp_path, common__a='#include "b.cuh"\n', common__b="#  include <deep/c.cuh>\n", deep__c="int c;\n")
    found = collect('#include "common/a.cuh"\n#include <cuda_fp16.h>\n', "k.cu", [root])
    assert dict(found.headers) == {
        "b.cuh": "#  include <deep/c.cuh>\n",
        "common/a.cuh": '#include "b.cuh"\n',
        "deep/c.cuh": "int c;\n",
    }


def test_circles_end(tmp_path: Path) -> None:
    root = tree(tmp_path, a='#pragma once\n#include "b.cuh"\n', b='#pragma once\n#include "a.cuh"\n')
    assert set(collect('#include "a.cuh"\n', "k.cu", [root]).headers) == {"a.cuh", "b.cuh"}


def test_the_first_folder_wins(tmp_path: Path) -> None:
    first, second = tree(tmp_path / "1", a="int one;\n"), tree(tmp_path / "2", a="int two;\n")
    assert collect('#include "a.cuh"\n', "k.cu", [first, second]).headers["a.cuh"] == "int one;\n"


def test_one_name_for_two_files_is_refused(tmp_path: Path) -> None:
    root = tree(tmp_path, x__all='#include "same.cuh"\n', y__all='#include "same.cuh"\n', x__same="", y__same="")
    with pytest.raises(KernelBuildError, match=r"two files as 'same.cuh'"):
        collect('#include "x/all.cuh"\n#include "y/all.cuh"\n', "k.cu", [root])


def test_a_changed_header_is_read_again(tmp_path: Path) -> None:
    root = tree(tmp_path, a="int one;\n")
    assert collect('#include "a.cuh"\n', "k.cu", [root]).headers["a.cuh"] == "int one;\n"
    (root / "a.cuh").write_text("int two;\n")
    os.utime(root / "a.cuh", (1, 1))
    assert collect('#include "a.cuh"\n', "k.cu", [root]).headers["a.cuh"] == "int two;\n"


def test_a_rung_with_its_headers() -> None:
    source = read_rung("rmsnorm", "3_vector")
    assert source.name == "rmsnorm/3_vector.cu" and "common/reduce.cuh" in source.headers
    assert (source_root() / "rmsnorm" / "3_vector.cu").read_text() == source.text


def test_what_builds_a_wheel_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys\nsys.modules.update(dict.fromkeys(('torch', 'numpy', 'cupy')))\n"
        "from labkit.device.build_all import build_all, shipped\nfrom labkit.device.sources import source_root\n"
        "wanted = shipped(source_root())[:1]\n"
        f"print(len(build_all(wanted, 'compute_70')) if {find_nvrtc() is not None} else len(wanted))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and int(done.stdout) > 0, done.stderr


def test_without_cupy_the_executor_cuda_names_the_cure() -> None:
    code = (
        "import sys\nsys.modules['cupy'] = None\nfrom labkit.errors import ExecutorError\n"
        "try:\n    import labkit.device.cuda\nexcept ExecutorError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "labkit-v100[gpu]" in done.stdout, done.stderr
