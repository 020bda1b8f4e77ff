"""All opcode cases, by family; a family is one PTX module of the recorder."""

from __future__ import annotations

from sim.hardware.case import Case
from sim.hardware.cases_atomic import atomic_cases
from sim.hardware.cases_compare import compare_cases, convert_cases
from sim.hardware.cases_control import control_cases, matrix_cases
from sim.hardware.cases_float import approximate_cases, float_cases, half_cases
from sim.hardware.cases_integer import bit_cases, integer_cases, video_cases
from sim.hardware.cases_memory import memory_cases
from sim.hardware.cases_random import random_cases
from sim.hardware.cases_warp import warp_cases

FAMILIES: dict[str, list[Case]] = {
    "integer": list(integer_cases()),
    "bits": list(bit_cases()),
    "video": list(video_cases()),
    "compare": list(compare_cases()),
    "convert": list(convert_cases()),
    "float": list(float_cases()),
    "half": list(half_cases()),
    "approximate": list(approximate_cases()),
    "warp": list(warp_cases()),
    "atomic": list(atomic_cases()),
    "memory": list(memory_cases()),
    "control": list(control_cases()),
    "matrix": list(matrix_cases()),
    "random": list(random_cases()),
}
CASES = [case for cases in FAMILIES.values() for case in cases]

# Checked by hand: in the loop at L9 the flag %p0 becomes true in the first round (80 < %t1), so that in the second one
# "@%p0 min.f32 %f3, %f0, %f0" must run. The H200 leaves it out: its driver's assembler (580.159.04) is wrong there.
WRONG_ON_HARDWARE = ("random program with memory 24",)
