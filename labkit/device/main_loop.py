"""What the main loop of a kernel consists of, from its machine code: how many instructions of each kind in one pass.

Where tensor cores set the pace, everything else has to find room between their instructions: the count says whether it
does, before anyone has a V100. (It is a count, not a time: latencies and bank conflicts are not in it.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from labkit.device.machine_code import Instruction, decode

TENSOR = "HMMA"  # an mma.m8n8k4 is four of them

KINDS: Mapping[str, tuple[str, ...]] = {
    "tensor": (TENSOR,),
    "shared": ("LDS", "STS", "ATOMS"),
    "global": ("LDG", "STG", "LD", "ST", "RED", "ATOM", "ATOMG"),
    "fp32": ("FFMA", "FADD", "FMUL", "FMNMX", "FSEL", "FSETP", "MUFU"),
    "fp16": ("HADD2", "HMUL2", "HFMA2", "HSET2", "HSETP2"),
    "integer": ("LOP3", "SHF", "PRMT", "IADD3", "IMAD", "IDP", "LEA", "ISETP", "SEL", "MOV", "CS2R", "SGXT", "PLOP3"),
    "control": ("BRA", "BAR", "BSSY", "BSYNC", "BREAK", "EXIT", "WARPSYNC", "NOP", "YIELD"),
}
"""Kind of work -> the instructions that do it. IMAD and CS2R also move registers."""
OTHER = "other"


def main_loop_mix(cubin: bytes, kernel: str) -> dict[str, int]:
    """Instruction -> how often it stands in one pass of the kernel's main loop, the most frequent first.

    Empty for a kernel without a loop. Raises KernelBuildError for a cubin of sm_70 that lacks the kernel.
    """
    return dict(Counter(each.name for each in main_loop(decode(cubin, kernel))).most_common())


def main_loop(code: Sequence[Instruction]) -> Sequence[Instruction]:
    """The innermost loop with the most tensor-core instructions, and of those the longest; empty if there is no loop.

    A loop is what lies between a backward branch and its target; blocks that the assembler moved elsewhere are not in
    it.
    """
    places = {each.address: place for place, each in enumerate(code)}
    ends: dict[int, int] = {}  # by start: of several branches back to one place, the last ends the loop
    for place, each in enumerate(code):
        if each.target is not None and places.get(each.target, place) < place:  # a branch to itself ends the code
            ends[places[each.target]] = place
    spans = ends.items()
    inner = [span for span in spans if not any(other != span and _within(other, span) for other in spans)]
    loops = [code[start : end + 1] for start, end in inner]
    return max(loops, key=lambda loop: (sum(each.name == TENSOR for each in loop), len(loop)), default=())


def by_kind(mix: Mapping[str, int]) -> dict[str, int]:
    """The same counts by kind of work, in the order of KINDS; what is in none of them is "other"."""
    kind_of = {name: kind for kind, names in KINDS.items() for name in names}
    counts: Counter[str] = Counter()
    for name, count in mix.items():
        counts[kind_of.get(name, OTHER)] += count
    return {kind: counts[kind] for kind in (*KINDS, OTHER) if counts[kind]}


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
