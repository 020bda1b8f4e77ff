"""What a chapter shows of a source is what stands in the file."""

from __future__ import annotations

import pytest

from labkit.device.sources import read_rung
from labkit.lab.source_text import function_text, idea
from labkit.ops import rmsnorm


@pytest.mark.parametrize("rung", rmsnorm.RUNGS)
def test_the_idea_is_the_head_of_the_file(rung: str) -> None:
    text = read_rung("rmsnorm", rung).text
    first, second = idea("rmsnorm", rung).splitlines()
    assert text.startswith(f"// {first}\n// {second.strip()}\n")
    assert first.startswith("Idea: ") and second.strip().startswith("Removes ")


@pytest.mark.parametrize(
    ("name", "rung"), [("tree_sum", "1_naive"), ("rmsnorm", "3_vector"), ("normalise", "2_shuffle")]
)
def test_functions_of_the_file_are_whole(name: str, rung: str) -> None:
    text = function_text(name, "rmsnorm", rung)
    assert text in read_rung("rmsnorm", rung).text
    assert f"{name}(" in text.splitlines()[0] + text.splitlines()[1]
    assert text.count("{") == text.count("}") and text.endswith("\n}")


def test_functions_of_a_header_are_found() -> None:
    text = function_text("block_sum", "rmsnorm", "2_shuffle")
    assert text.startswith("template") and "__syncthreads" in text and text.count("{") == text.count("}")


def test_a_function_of_one_line_is_that_line() -> None:
    text = function_text("fragment_row", "awq_gemm", "1_one_warp")
    assert text.count("\n") == 0 and text.endswith("}") and "fragment_row(int lane) {" in text


def test_calls_are_no_definitions() -> None:
    assert "__shfl_xor_sync(ALL_LANES" in function_text("warp_sum", "rmsnorm", "2_shuffle")
    with pytest.raises(KeyError, match="no function rsqrtf"):
        function_text("rsqrtf", "rmsnorm", "2_shuffle")


def test_python_functions_come_from_their_module() -> None:
    assert function_text(rmsnorm.reference).startswith("def reference(")
