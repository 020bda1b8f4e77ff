"""The machine code of a V100 kernel, as far as counting instructions and finding loops needs it: no tool, any machine.

Volta's instructions are 16 bytes long. Nine low bits say which one it is, three more what kind of operand it takes; a
branch holds its distance in words of four bytes, counted from its end, in bits 34 to 81. NVIDIA publishes no encoding:
names and bits here are those that nvdisasm of CUDA 12.8 prints for the kernels of this project.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from labkit.errors import KernelBuildError

SIZE = 16  # bytes of an instruction
UNKNOWN = "?"
BRANCH = "BRA"
DISTANCE_BITS = 48

OPCODES = {
    0x002: "MOV", 0x003: "P2R", 0x004: "R2P", 0x005: "CS2R", 0x006: "VOTE", 0x007: "SEL", 0x008: "FSEL", 0x009: "FMNMX",
    0x00A: "FSET", 0x00B: "FSETP", 0x00C: "ISETP", 0x010: "IADD3", 0x011: "LEA", 0x012: "LOP3", 0x013: "IABS",
    0x014: "VABSDIFF", 0x015: "VABSDIFF4", 0x016: "PRMT", 0x019: "SHF", 0x01A: "SGXT", 0x01C: "PLOP3", 0x020: "FMUL",
    0x021: "FADD", 0x023: "FFMA", 0x024: "IMAD", 0x025: "IMAD", 0x026: "IDP", 0x028: "DMUL", 0x029: "DADD",
    0x02A: "DSETP", 0x02B: "DFMA", 0x030: "HADD2", 0x031: "HFMA2", 0x032: "HMUL2", 0x033: "HSET2", 0x034: "HSETP2",
    0x036: "HMMA", 0x100: "FLO", 0x101: "BREV", 0x102: "FCHK", 0x104: "F2F", 0x105: "F2I", 0x106: "I2F",
    0x107: "FRND", 0x108: "MUFU", 0x109: "POPC", 0x110: "F2F", 0x111: "F2I", 0x112: "I2F", 0x113: "FRND",
    0x118: "NOP", 0x119: "S2R", 0x11C: "B2R", 0x11D: "BAR", 0x141: "BSYNC", 0x142: "BREAK", 0x144: "CALL",
    0x145: "BSSY", 0x146: "YIELD", 0x147: BRANCH, 0x148: "WARPSYNC", 0x149: "BRX", 0x14D: "EXIT", 0x150: "RET",
    0x155: "BMOV", 0x15C: "BPT", 0x15D: "NANOSLEEP", 0x180: "LD", 0x181: "LDG", 0x182: "LDC", 0x183: "LDL",
    0x184: "LDS", 0x185: "ST", 0x186: "STG", 0x187: "STL", 0x188: "STS", 0x189: "SHFL", 0x18A: "ATOM", 0x18C: "ATOMS",
    0x18D: "ATOMS", 0x18E: "RED", 0x18F: "CCTL", 0x192: "MEMBAR", 0x1A1: "MATCH", 0x1A8: "ATOMG", 0x1A9: "ATOMG",
    0x1AA: "QSPC", 0x1AB: "ERRBAR",
}  # fmt: skip
"""Nine low bits -> name, without the suffixes that nvdisasm adds (HMMA.884.F32.F32.STEP0)."""


@dataclass(frozen=True)
class Instruction:
    """One instruction. name: "?" for one that is not in OPCODES. target: address to which a branch goes, in bytes."""

    address: int
    name: str
    target: int | None = None


def decode(cubin: bytes, kernel: str) -> list[Instruction]:
    """The instructions of a kernel of an sm_70 cubin, in order. Raises KernelBuildError for a cubin without it."""
    code = _section(cubin, f".text.{kernel}")
    if code is None:
        raise KernelBuildError(f"The cubin has no machine code of {kernel!r}.", cure="Give a cubin and its kernel.")
    words = struct.iter_unpack("<QQ", code[: len(code) // SIZE * SIZE])
    return [instruction(SIZE * place, low, high) for place, (low, high) in enumerate(words)]


def instruction(address: int, low: int, high: int) -> Instruction:
    """One instruction from its two 64-bit words."""
    name = OPCODES.get(low & 0x1FF, UNKNOWN)
    if name != BRANCH:
        return Instruction(address, name)
    distance = (high << 30 | low >> 34) & ((1 << DISTANCE_BITS) - 1)
    if distance >> (DISTANCE_BITS - 1):
        distance -= 1 << DISTANCE_BITS
    return Instruction(address, name, address + SIZE + 4 * distance)


def _section(elf: bytes, wanted: str) -> bytes | None:
    """The content of a section of a 64-bit little-endian ELF file; None where there is none of the name."""
    try:
        if elf[:6] != b"\x7fELF\x02\x01":
            return None
        (table,) = struct.unpack_from("<Q", elf, 40)
        size, count, names = struct.unpack_from("<HHH", elf, 58)
        # name, type, flags, address, offset, size
        headers = [struct.unpack_from("<IIQQQQ", elf, table + n * size) for n in range(count)]
        strings = headers[names][4]
        for name, _, _, _, offset, length in headers:
            start = strings + name
            if elf[start : elf.index(b"\0", start)] == wanted.encode():
                return elf[offset : offset + length]
    except (struct.error, IndexError, ValueError):
        return None
    return None
