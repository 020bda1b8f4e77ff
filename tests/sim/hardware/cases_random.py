"""Random programs of integer and rounded float instructions under nested branches and loops.

They show what single instructions cannot: registers that live on past joins, copies that must not share storage,
results that are not needed, threads that part and meet again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
from sim.hardware.case import Case

COUNT, COUNT_WITH_MEMORY = 120, 80
WORDS, SINGLES, LONGS, FLAGS = 8, 4, 3, 4  # registers of each kind that the programs use
# Destination and operands by kind: w a 32-bit word, s an f32, l a 64-bit word, f a predicate.
TEMPLATES = (
    "w add.u32 w w", "w sub.s32 w w", "w mul.lo.u32 w w", "w mad.lo.s32 w w w", "w mul.hi.u32 w w", "w xor.b32 w w",
    "w and.b32 w w", "w or.b32 w w", "w not.b32 w", "w shl.b32 w w", "w shr.s32 w w", "w shr.u32 w w", "w min.s32 w w",
    "w max.u32 w w", "w popc.b32 w", "w brev.b32 w", "w selp.b32 w w f", "w mov.b32 w", "w mov.b32 w", "w neg.s32 w",
    "w prmt.b32 w w w", "w shf.l.wrap.b32 w w w", "w bfe.u32 w w w", "w cvt.rni.s32.f32 s", "w cvt.u32.u64 l",
    "s add.rn.f32 s s", "s mul.rn.f32 s s", "s fma.rn.f32 s s s", "s min.f32 s s", "s max.f32 s s", "s neg.f32 s",
    "s cvt.rn.f32.s32 w", "s selp.f32 s s f", "s mov.f32 s", "s abs.f32 s",
    "l add.u64 l l", "l mul.wide.u32 w w", "l mad.wide.s32 w w l", "l shl.b64 l w", "l cvt.s64.s32 w", "l xor.b64 l l",
    "f setp.lt.s32 w w", "f setp.ge.u32 w w", "f setp.gt.f32 s s", "f setp.neu.f32 s s", "f and.pred f f",
    "f not.pred f", "f setp.eq.u64 l l", "f xor.pred f f",
)  # fmt: skip
POOLS = {"w": ("%t", WORDS), "s": ("%f", SINGLES), "l": ("%q", LONGS), "f": ("%p", FLAGS)}


def random_cases() -> Iterator[Case]:
    for number in range(COUNT):
        name = f"random program {number}"
        yield Case(name, Writer(name).program(), ("u32", "u32", "f32:moderate", "f32"), RESULTS, threads=96, blocks=1)

    for number in range(COUNT_WITH_MEMORY):
        name = f"random program with memory {number}"
        writer = Writer(name, with_memory=True)
        operands = ("u32", "u32", "f32:moderate", "f32")
        yield Case(name, writer.program(), operands, RESULTS, threads=96, blocks=1, declarations=CELLS)


CELLS = "\t.shared .align 16 .b8 cells[1536];\n\t.local .align 16 .b8 own[16];\n"  # 16 bytes a thread of each
RESULTS = ("b32",) * WORDS + ("f32",) * SINGLES + ("b64",) * LONGS


class Writer:
    """Writes one program; the same for the same name."""

    def __init__(self, name: str, with_memory: bool = False) -> None:
        self.with_memory = with_memory
        self.random = np.random.RandomState(zlib.crc32(name.encode()))
        self.lines: list[str] = []
        self.labels = 0

    def program(self) -> str:
        self.lines += [f"mov.u32 %t{i}, {'%a' if i % 2 else '%b'};" for i in range(4)]
        self.lines += [f"mov.u32 %t{i}, {self.random.randint(0, 100)};" for i in range(4, WORDS)]
        self.lines += [f"mov.f32 %f{i}, {'%c' if i % 2 else '%d'};" for i in range(SINGLES)]
        self.lines += [f"cvt.u64.u32 %q{i}, %t{i};" for i in range(LONGS)]
        self.lines += [f"setp.lt.u32 %p{i}, %t{i}, {10**i * 1000};" for i in range(FLAGS)]
        if self.with_memory:
            self.lines += ["mov.u32 %t15, cells;", "mad.lo.u32 %t15, %thread, 16, %t15;", "mov.u64 %q7, own;"]
            self.lines += [
                "st.shared.v4.b32 [%t15], {%t0, %t1, %t2, %t3};",
                "st.local.v4.b32 [%q7], {%t3, %t2, %t1, %t0};",
            ]
        self.statements(depth=0, count=14)
        results = [f"%t{i}" for i in range(WORDS)] + [f"%f{i}" for i in range(SINGLES)]
        results += [f"%q{i}" for i in range(LONGS)]
        kinds = [name if name[0] == "f" else f"b{name[1:]}" for name in RESULTS]
        self.lines += [f"mov.{kind} %r{i}, {results[i]};" for i, kind in enumerate(kinds)]
        return "\n".join(self.lines)

    def statements(self, depth: int, count: int) -> None:
        for _ in range(count):
            kind = self.random.randint(0, 10)
            if kind == 0 and depth < 3:
                self.branch(depth)
            elif kind == 1 and depth < 2:
                self.loop(depth)
            elif kind in (2, 3) and self.with_memory:
                self.memory(depth)
            else:
                self.instruction()

    def instruction(self) -> None:
        target, opcode, *kinds = TEMPLATES[self.random.randint(0, len(TEMPLATES))].split()
        operands = ", ".join(self.pick(kind) for kind in (target, *kinds))
        guard = f"@{self.pick('f')} " if self.random.randint(0, 8) == 0 else ""
        self.lines.append(f"{guard}{opcode} {operands};")

    def memory(self, depth: int) -> None:
        """A cell of the thread's own in shared or local memory; where all threads meet, also another lane's word."""
        kind = self.random.randint(0, 5)
        if kind == 0 and depth == 0:
            mode = ("bfly", "idx", "up", "down")[self.random.randint(0, 4)]
            clamp = 0 if mode == "up" else 31
            lane = f"{mode}.b32 {self.pick('w')}|{self.pick('f')}, {self.pick('w')}, {self.random.randint(0, 32)}"
            self.lines.append(f"shfl.sync.{lane}, {clamp}, 0xffffffff;")
        elif kind == 1 and depth == 0:
            self.lines.append(f"vote.sync.ballot.b32 {self.pick('w')}, {self.pick('f')}, 0xffffffff;")
        else:
            self.cell(("shared", "local")[self.random.randint(0, 2)])

    def cell(self, space: str) -> None:
        address = "%t14" if space == "shared" else "%q6"
        self.lines.append(f"and.b32 %t14, {self.pick('w')}, 12;")
        if space == "shared":
            self.lines.append("add.u32 %t14, %t14, %t15;")
        else:
            self.lines += ["cvt.u64.u32 %q6, %t14;", "add.u64 %q6, %q6, %q7;"]
        guard = f"@{self.pick('f')} " if self.random.randint(0, 3) == 0 else ""
        if self.random.randint(0, 2):
            kind = ("b32", "u16", "s8")[self.random.randint(0, 3)].replace("s8", "u8")
            self.lines.append(f"{guard}st.{space}.{kind} [{address}], {self.pick('w')};")
        else:
            kind = ("b32", "s16", "u8")[self.random.randint(0, 3)]
            self.lines.append(f"{guard}ld.{space}.{kind} {self.pick('w')}, [{address}];")

    def branch(self, depth: int) -> None:
        otherwise, end = self.label(), self.label()
        self.lines.append(f"@{'!' * int(self.random.randint(0, 2))}{self.pick('f')} bra {otherwise};")
        self.statements(depth + 1, 4)
        self.lines += [f"bra {end};", f"{otherwise}:"]
        self.statements(depth + 1, 3)
        self.lines.append(f"{end}:")

    def loop(self, depth: int) -> None:
        """One to four rounds, by the thread's own data; the counter stands apart from the registers in use."""
        again, counter = self.label(), f"%t{WORDS + depth}"
        self.lines += [f"and.b32 {counter}, {self.pick('w')}, 3;", f"{again}:"]
        self.statements(depth + 1, 4)
        self.lines += [f"sub.u32 {counter}, {counter}, 1;", f"setp.ge.s32 %p7, {counter}, 0;", f"@%p7 bra {again};"]

    def pick(self, kind: str) -> str:
        prefix, count = POOLS[kind]
        return f"{prefix}{self.random.randint(0, count)}"

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"
