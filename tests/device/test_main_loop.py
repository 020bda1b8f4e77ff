"""Machine code of a V100 without a disassembler: instructions, branches, and what a main loop consists of."""

from __future__ import annotations

import pytest

from labkit.device.build_all import all_rungs
from labkit.device.image import build_image
from labkit.device.machine_code import SIZE, UNKNOWN, Instruction, decode, instruction
from labkit.device.main_loop import KINDS, by_kind, main_loop, main_loop_mix
from labkit.device.nvrtc import find_nvrtc
from labkit.errors import KernelBuildError
from labkit.ops.ladders import LADDERS

needs_nvrtc = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")

# Address, the two words, and what nvdisasm of CUDA 12.8 makes of them.
DISASSEMBLED = [
    (0x080, 0x000005F000002947, 0x000FEA0003800000, "BRA", 0x680),  # @P2, forward
    (0x320, 0xFFFFFEC000001947, 0x000FEA000383FFFF, "BRA", 0x1F0),  # @P1, backward
    (0x670, 0xFFFFFD3000008947, 0x000FEA000383FFFF, "BRA", 0x3B0),  # @!P0, backward
    (0x440, 0xFFFFFFF000007947, 0x000FC0000383FFFF, "BRA", 0x440),  # to itself: the end of the code
    (0x3CC0, 0xFFFFF61100008947, 0x000FEA000383FFFF, "BRA", 0x32E0),  # @!P0 BRA.U
]


@pytest.mark.parametrize(("address", "low", "high", "name", "target"), DISASSEMBLED)
def test_branches(address: int, low: int, high: int, name: str, target: int) -> None:
    assert instruction(address, low, high) == Instruction(address, name, target)


def code(*names: str | tuple[str, int]) -> list[Instruction]:
    """Instructions in a row; a pair is a branch to the place that it names."""
    parts = [(each, None) if isinstance(each, str) else (each[0], SIZE * each[1]) for each in names]
    return [Instruction(SIZE * place, name, target) for place, (name, target) in enumerate(parts)]


def names_of(*names: str | tuple[str, int]) -> list[str]:
    return [each.name for each in main_loop(code(*names))]


def test_the_main_loop_is_the_inner_one_with_the_most_tensor_work() -> None:
    outer = (
        "MOV",
        "LDG",
        ("BRA", 5),
        "HMMA",
        ("BRA", 1),
        "STS",
        "HMMA",
        "HMMA",
        ("BRA", 5),
        ("BRA", 0),
        "EXIT",
        ("BRA", 11),
    )
    assert names_of(*outer) == ["STS", "HMMA", "HMMA", "BRA"]


def test_without_tensor_work_the_longest() -> None:
    assert names_of("FADD", ("BRA", 0), "FFMA", "FMUL", ("BRA", 2), "EXIT") == ["FFMA", "FMUL", "BRA"]


def test_a_loop_with_two_branches_back_goes_to_the_last() -> None:
    assert names_of("MOV", "LDG", ("BRA", 1), "HMMA", ("BRA", 1), "EXIT") == ["LDG", "BRA", "HMMA", "BRA"]


def test_no_loop() -> None:
    assert names_of("MOV", ("BRA", 2), "EXIT", ("BRA", 3)) == []
    assert by_kind({}) == {}


def test_kinds_of_work() -> None:
    mix = {"HMMA": 8, "LDS": 2, "STS": 1, "IMAD": 5, "S2R": 1, UNKNOWN: 2}
    assert by_kind(mix) == {"tensor": 8, "shared": 3, "integer": 5, "other": 3}
    names = [name for names in KINDS.values() for name in names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("cubin", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + bytes(200), b"nonsense" * 20])
def test_what_is_no_cubin(cubin: bytes) -> None:
    with pytest.raises(KernelBuildError, match="'rmsnorm'"):
        decode(cubin, "rmsnorm")


@needs_nvrtc
def test_a_kernel_that_is_not_in_the_cubin() -> None:
    ladder = LADDERS["softmax_online"]
    cubin = build_image(ladder.op, ladder.shipped, ladder.default_macros[0]).cubins["sm_70"]
    assert main_loop_mix(cubin, ladder.entries[0])
    with pytest.raises(KernelBuildError, match="'softmax'"):
        main_loop_mix(cubin, "softmax")


@needs_nvrtc
@pytest.mark.parametrize("op", LADDERS)
def test_every_instruction_of_every_kernel_has_a_name(op: str) -> None:
    for item in all_rungs([LADDERS[op]]):
        cubin = build_image(item.op, item.rung, item.macros).cubins["sm_70"]
        for entry in item.entries:
            code = decode(cubin, entry)
            assert code[-1].name in ("BRA", "NOP")
            assert UNKNOWN not in {each.name for each in code}
            inside = range(0, SIZE * len(code), SIZE)
            assert all(each.target is None or each.target in inside for each in code)
