"""`labkit sim` on files of the user's, and its language for arguments."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.command_line import ROOT, Cli, refused

from labkit.cli.sim_arguments import parse_argument, parse_macro, parse_size
from labkit.errors import ConfigError
from labkit.sim.buffers import Out
from labkit.sim.source import load_program

SOURCE = """#include <cstdio>
extern "C" __global__ void scale(const float* x, float* y, float factor, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i == 0) printf("n = %d\\n", n);
  if (i < n) y[i] = factor * x[i] + EXTRA;
}
"""
RIGHT = (
    "--grid",
    "2",
    "--block",
    "64",
    "--arg",
    "f32:100=arange",
    "--arg",
    "out f32:100",
    "--arg",
    "0.5",
    "--arg",
    "100",
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scale.cu"
    path.write_text(SOURCE, encoding="utf-8")
    return path


def test_a_run_without_findings(cli: Cli, file: Path) -> None:
    ended = cli("sim", file, *RIGHT, "--macro", "EXTRA=2.0f", "--print", 4, "--annotate")
    assert (ended.code, ended.err) == (0, "")
    for words in ("scale ran: no findings", "n = 100", "argument 1: 2 2.5 3 3.5", "global load sectors", "| extern"):
        assert words in ended.out


def test_findings_make_the_exit_code_3(cli: Cli, file: Path) -> None:
    ended = cli("sim", file, *RIGHT[:-1], "101", "--macro", "EXTRA=0")
    assert ended.code == 3 and ended.err == ""
    assert "out-of-bounds: line 5, thread 36 of block 1" in ended.out


def test_json_is_one_document(cli: Cli, file: Path) -> None:
    ended = cli("sim", file, *RIGHT, "--macro", "EXTRA=1", "--print", 2, "--json", "--kernel", "scale")
    document = json.loads(ended.out)
    assert document["ok"] and document["findings"] == [] and document["output"] == "n = 100\n"
    assert document["arrays"] == {"0": [0.0, 1.0], "1": [1.0, 1.5]}
    assert document["counters"]["global_store"]["sectors"] == 13


def test_without_checks_an_unfilled_output_passes(cli: Cli, file: Path) -> None:
    short = (*RIGHT[:-1], "99", "--macro", "EXTRA=1")
    assert cli("sim", file, *short).code == 3
    assert cli("sim", file, *short, "--no-checks").code == 0


def test_the_compiler_points_at_the_place(cli: Cli, file: Path) -> None:
    ended = cli("sim", file, *RIGHT)
    assert (ended.code, ended.out) == (1, "")
    told, repeated, source, caret = ended.err.splitlines()
    assert "does not compile" in told and "EXTRA" in told and ".log" not in told
    assert "(5): error" in repeated and source.split() == SOURCE.splitlines()[4].split()
    assert source[caret.index("^") :].startswith("EXTRA")


def test_what_cannot_be_is_refused_in_one_line(cli: Cli, file: Path, tmp_path: Path) -> None:
    refused(cli("sim", tmp_path / "no.cu"), "is no file")
    refused(cli("sim", file, *RIGHT, "--macro", "EXTRA=1", "--kernel", "other"), "no kernel 'other'", "scale")
    refused(cli("sim", file, "--macro", "EXTRA=1", "--arg", "5"), "takes 4 arguments")
    refused(cli("sim", file, "--macro", "EXTRA=1", "--arg", "x:3"), "no argument", "f32:1024=random")
    refused(cli("sim", file, "--grid", "1x2"), "grid", "X,Y")
    refused(cli("sim", file, "--macro", "1=2"), "macro", "NAME=VALUE")
    refused(cli("sim", file, "--macro", "EXTRA=1", "--seed", -1, "--arg", "f32:8=random"), "seed is -1")
    pointer = ("--arg", "5", "--arg", "f32:8", "--arg", "1", "--arg", "8")
    refused(cli("sim", file, "--macro", "EXTRA=1", *pointer), r"argument 0 \(x\) is a pointer, not 5")
    for usage in (("--no-such-flag",), ("--print", -3)):
        assert cli("sim", file, *usage).code == 2


def test_macros_have_no_place_in_a_ptx_file(cli: Cli, file: Path, tmp_path: Path) -> None:
    path = tmp_path / "scale.ptx"
    path.write_text(load_program(file, macros={"EXTRA": 1}).ptx, encoding="utf-8")
    assert cli("sim", path, *RIGHT).code == 0
    refused(cli("sim", path, *RIGHT, "--macro", "EXTRA=1"), "is PTX")


def test_steps_order_and_header_folders(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "one.cuh").write_text("#define ONE 1\n", encoding="utf-8")
    file = tmp_path / "spin.cu"
    source = '#include "one.cuh"\nextern "C" __global__ void k(int* x) { while (true) atomicAdd(x, ONE); }\n'
    file.write_text(source, encoding="utf-8")
    words = ("sim", file, "--arg", "i32:1", "--include", tmp_path / "headers", "--block", 1, "--print", 1, "--json")
    ended = cli(*words, "--max-steps", 50, "--shuffle-seed", 3)
    document = json.loads(ended.out)
    assert ended.code == 3 and [found["kind"] for found in document["findings"]] == ["endless"]
    assert 20 <= document["arrays"]["0"][0] <= 50
    refused(cli(*words[:-1], "--max-steps", 0), "max_steps is 0")


def test_json_holds_the_annotation_that_was_asked_for(cli: Cli, file: Path) -> None:
    words = ("sim", file, *RIGHT, "--macro", "EXTRA=1", "--json")
    assert "annotated" not in json.loads(cli(*words).out)
    assert "| extern" in json.loads(cli(*words, "--annotate").out)["annotated"]


def parsed(text: str) -> Any:
    return parse_argument(text, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("f32:4", [0, 0, 0, 0]),
        ("i32:2x2=arange", [[0, 1], [2, 3]]),
        ("f16:3=ones", [1, 1, 1]),
        ("u8:5=1,2..", [1, 2, 1, 2, 1]),
        ("i64:2=-1,0x10", [-1, 16]),
        ("f64:3=0.25", [0.25, 0.25, 0.25]),
        ("f32:2=inf,-1e3", [float("inf"), -1000]),
        ("bool:2=1,0", [True, False]),
    ],
)
def test_arrays_by_their_description(text: str, values: list[Any]) -> None:
    array = parsed(text)
    kinds = {"i": "int", "u": "uint", "f": "float", "b": "bool"}
    kind, bits = (text[0], text[1 : text.index(":")]) if text[0] != "b" else ("b", "")
    assert array.tolist() == values and array.dtype == np.dtype(kinds[kind] + bits)


def test_random_arrays_follow_the_seed() -> None:
    first, again = parsed("f32:500=random"), parsed("f32:500=random")
    other = parse_argument("f32:500=random", np.random.default_rng(1))
    assert (first == again).all() and (first != other).any()
    assert -1 <= first.min() < -0.9 and 0.9 < first.max() <= 1
    assert parsed("i32:500=random").min() >= 0 and parsed("i32:500=random").max() == 99


def test_files_outputs_numbers_and_null(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6).reshape(2, 3))
    assert parsed(f"@{tmp_path / 'x.npy'}").tolist() == [[0, 1, 2], [3, 4, 5]]
    out = parsed("out f32:8")
    assert isinstance(out, Out) and out.tensor.shape == (8,)
    assert parsed("42") == 42 and parsed("-0x1F") == -31 and parsed("0.5") == 0.5 and parsed("null") is None
    assert parse_macro("N=3") == ("N", "3") and parse_macro("FAST") == ("FAST", "1")
    assert parse_size("4", "grid") == (4,) and parse_size("4,2,1", "grid") == (4, 2, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f32",
        "f33:8",
        "f32:0",
        "f32:8=1,2",
        "f32:x",
        "u8:2=300,1",
        "out 3",
        "@nowhere.npy",
        "f32:8=foo",
        "i32:4=1.5..",
        "bool:2=2,0",
        "f16:2=1e6",
    ],
)
def test_what_is_no_argument_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parsed(text)


def test_the_example_runs_as_it_says(cli: Cli) -> None:
    """The command in the head of examples/add.cu, and what becomes of it without the guard."""
    path = ROOT / "examples" / "add.cu"
    text = path.read_text(encoding="utf-8")
    command = " ".join(line.removeprefix("//").strip().rstrip("\\") for line in text.splitlines()[2:4])
    _, name, file, *options = shlex.split(command)
    assert (name, ROOT / file) == ("sim", path) and "if (i < n) " in text
    ended = cli("sim", path, *options)
    assert (ended.code, ended.err) == (0, "") and "add ran: no findings" in ended.out
