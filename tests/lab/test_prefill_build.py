"""The static facts of chapter 10 are those of the machine code, and its excerpts those of the sources."""

from __future__ import annotations

import pytest

from labkit.device.nvrtc import find_nvrtc
from labkit.lab.prefill_build import HMMA_EACH, prefill_build
from labkit.lab.source_text import source_lines
from labkit.ops.attention_prefill import shared_bytes

needs_compiler = pytest.mark.skipif(find_nvrtc() is None, reason="needs NVRTC")
OP = "attention_prefill"


@needs_compiler
@pytest.mark.parametrize("rung", ["2_tensor_cores", "4_prefetch"])
def test_a_rung_as_machine_code(rung: str) -> None:
    build = prefill_build(rung, 64)
    assert build.spills == 0 and build.hmma == HMMA_EACH * build.mma > 0
    assert build.shared_bytes >= max(1, shared_bytes(rung, 64)) and build.resident.blocks >= 1
    assert build.besides == pytest.approx(4 * (sum(build.mix.values()) - build.mix["tensor"]) / build.mix["tensor"])
    counted = {name: build.code.count(name) for name in ("LDG", "STS", "BAR", "HMMA")}
    told = dict.fromkeys(counted, 0)
    for each in build.steps.split(", "):
        name, _, count = each.partition(" ")
        told[name] += int(count or 1)
    assert told == counted


@needs_compiler
def test_a_rung_without_tensor_cores() -> None:
    build = prefill_build("1_scalar", 64)
    assert build.mma == build.hmma == 0 and "HMMA" not in build.steps
    with pytest.raises(ValueError, match="1_scalar has no tensor-core"):
        _ = build.besides


def test_a_stretch_of_a_source() -> None:
    text = source_lines(OP, "4_prefetch", "#pragma once", "#include")
    assert text.splitlines()[0] == "#pragma once" and text.splitlines()[-1].startswith("#include")
    inside = source_lines(OP, "4_prefetch", "void step(", "float before")
    assert not inside.startswith(" ") and "\n  " in inside


def test_no_such_lines() -> None:
    with pytest.raises(KeyError, match="no lines from 'nowhere'"):
        source_lines(OP, "4_prefetch", "nowhere", "#include")
