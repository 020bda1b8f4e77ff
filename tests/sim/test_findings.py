"""Findings: one for each fault, with the place and the thread that showed it first."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from helpers.lanes import kernel_of

from labkit.sim.findings import KINDS, Findings


def test_repeats_are_counted_and_the_first_is_named() -> None:
    findings = Findings(kernel_of("load.global", "store.global"), (2, 1, 1), (64, 1, 1))
    findings.report(
        "out-of-bounds", 1, "writes beyond y", blocks=np.array([1, 1]), threads=np.array([5, 6]), address=[64, 68]
    )
    findings.report("out-of-bounds", 1, "writes beyond y", blocks=0, threads=0)
    findings.report("out-of-bounds", 0, "reads beyond x", blocks=0, threads=7)
    first, second = findings.as_list()
    assert (first.line, first.thread, first.count) == (1, 7, 1)
    assert (second.line, second.block, second.thread, second.address, second.count) == (2, 1, 5, 64, 3)
    assert str(second) == "out-of-bounds: line 2, thread 5 of block 1 writes beyond y (3 times)"
    assert len(findings) == 2


def test_a_race_names_both_accesses() -> None:
    findings = Findings(kernel_of("store.shared", "load.shared"))
    for other in (0, 1):
        findings.report(
            "shared-race", 1, "races", blocks=0, threads=3, other_site=other, other_thread=40, other_block=0
        )
    first, second = findings.as_list()
    assert first.other and (first.other.line, first.other.thread, first.other.block) == (1, 40, 0)
    assert second.other and second.other.line == 2
    assert "the other: line 1, thread 40 of block 0" in str(first)


def test_a_race_in_an_unrolled_loop_is_told_once() -> None:
    kernel = kernel_of("store.shared", "load.shared", "load.shared", "load.shared")
    kernel.sites[2] = replace(kernel.sites[2], line=2)
    findings = Findings(kernel)
    for site in (1, 2, 3):
        findings.report("shared-race", site, "races", blocks=0, threads=3, other_site=0, other_thread=4, other_block=0)
        findings.report("out-of-bounds", site, "reads beyond x", blocks=0, threads=3)
    races = [found for found in findings.as_list() if found.kind == "shared-race"]
    assert [(found.line, found.count) for found in races] == [(2, 2), (4, 1)] and len(findings) == 5


def test_threads_of_flat_shapes_have_numbers_and_others_coordinates() -> None:
    findings = Findings(kernel_of("load.global"), (3, 2, 1), (8, 4, 2))
    assert findings.name_thread(43) == "43 (3, 1, 1)" and findings.name_block(5) == "5 (2, 1, 0)"
    findings.report("trap", 0, "ends the launch", blocks=5, threads=43)
    assert "thread 43 (3, 1, 1) of block 5 (2, 1, 0)" in str(findings.as_list()[0])


def test_findings_without_a_place_and_as_json() -> None:
    findings = Findings(kernel_of("store.global"))
    findings.report("unwritten-output", None, "8 of 16 bytes of y were never written")
    [found] = findings.as_list()
    assert (found.line, found.block, found.other) == (0, None, None)
    document = json.loads(json.dumps(found.to_json()))
    assert document["kind"] in KINDS and document["other"] is None and document["text"] == found.text
