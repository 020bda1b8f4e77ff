"""Random kernels full of divergence, each as CUDA C++ and as a Python generator that says what one thread does.

A thread's generator yields what it hands to its block at a meeting point and is sent what it gets back; `run_block`
brings all threads of a block to each meeting point before it lets them go on. So nothing here knows about lanes,
masks or scheduling, which is what makes it a reference for them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

MASK = 0xFFFFFFFF
VARIABLES = ("a", "b", "c", "d")
Thread = Generator[tuple[str, int], int, int]


@dataclass
class RandomKernel:
    """cuda: a kernel ``name(const unsigned* in, unsigned* out, unsigned* counter)``; thread: its reference."""

    name: str
    cuda: str
    thread: Callable[..., Thread]


class _Writer:
    """Writes the same program in both languages, statement by statement."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.cuda: list[str] = []
        self.python: list[str] = []
        self.loops = 0

    def line(self, depth: int, cuda: str, python: str) -> None:
        self.cuda.append("    " * depth + cuda)
        self.python.append("    " * depth + python)

    def value(self) -> str:
        return self.rng.choice([*VARIABLES, "i", str(self.rng.randrange(1, 1000))])

    def condition(self) -> str:
        variable, bits = self.rng.choice([*VARIABLES, "i"]), self.rng.choice([1, 1, 3, 7])
        relation, wanted = self.rng.choice(["==", "!="]), self.rng.randrange(bits + 1)
        return f"(({variable} >> {self.rng.randrange(8)}) & {bits}) {relation} {wanted}"

    def assignment(self, depth: int) -> None:
        target = self.rng.choice(VARIABLES)
        operator = self.rng.choice(["+", "-", "*", "^", "&", "|"])
        left, right = self.rng.choice([target, self.value()]), self.value()
        self.line(depth, f"{target} = {left} {operator} {right};", f"{target} = ({left} {operator} {right}) & {MASK}")

    def branch(self, depth: int, budget: int, in_loop: bool) -> None:
        condition = self.condition()
        self.line(depth, f"if ({condition}) {{", f"if {condition}:")
        self.body(depth + 1, budget // 2, False, in_loop)
        if self.rng.random() < 0.6:
            self.line(depth, "} else {", "else:")
            self.body(depth + 1, budget // 2, False, in_loop)
        self.cuda.append("    " * depth + "}")

    def loop(self, depth: int, budget: int, together: bool) -> None:
        counter, self.loops = f"k{self.loops}", self.loops + 1
        same_for_all = together and self.rng.random() < 0.5
        limit = (
            str(self.rng.randrange(1, 4))
            if same_for_all
            else f"({self.rng.choice([*VARIABLES, 'i'])} & {self.rng.choice([3, 7])})"
        )
        self.line(depth, f"unsigned n{counter} = {limit};", f"n{counter} = {limit}")
        self.line(
            depth,
            f"for (unsigned {counter} = 0; {counter} < n{counter}; {counter}++) {{",
            f"for {counter} in range(n{counter}):",
        )
        self.body(depth + 1, budget // 2, same_for_all, not same_for_all)
        self.cuda.append("    " * depth + "}")

    def leave(self, depth: int) -> None:
        condition, word = self.condition(), self.rng.choice(["break", "continue"])
        self.line(depth, f"if ({condition}) {word};", f"if {condition}: {word}")

    def meeting(self, depth: int) -> None:
        """All threads of the block are here: exchange values, vote, or count."""
        target, source = self.rng.choice(VARIABLES), self.rng.choice(VARIABLES)
        kind = self.rng.choice(["exchange", "ballot", "shuffle", "count"])
        cuda = {
            "exchange": f"s[threadIdx.x] = {source}; __syncthreads(); "
            f"{target} ^= s[blockDim.x - 1 - threadIdx.x]; __syncthreads();",
            "ballot": f"{target} += __ballot_sync(~0u, {source} & 4);",
            "shuffle": f"{target} += __shfl_xor_sync(~0u, {source}, 1);",
            "count": f"{target} += __syncthreads_count({source} & 2);",
        }[kind]
        operator = "^" if kind == "exchange" else "+"
        self.line(depth, cuda, f"{target} = ({target} {operator} (yield ({kind!r}, {source}))) & {MASK}")

    def body(self, depth: int, budget: int, together: bool, in_loop: bool) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            self.assignment(depth)
            choice = self.rng.random()
            if budget > 1 and choice < 0.35:
                self.branch(depth, budget, in_loop)
            elif budget > 1 and choice < 0.6:
                self.loop(depth, budget, together)
            elif together and choice < 0.85:
                self.meeting(depth)
            elif in_loop and choice < 0.8:
                self.leave(depth)
            elif choice > 0.92:
                variable = self.rng.choice(VARIABLES)
                self.line(depth, f"atomicAdd(counter, {variable} & 255);", f"counter[0] += {variable} & 255")


def random_kernel(name: str, seed: int) -> RandomKernel:
    """A kernel that has a few levels of branches and loops, and meeting points outside of divergent code."""
    writer = _Writer(random.Random(seed))
    writer.body(1, 16, True, False)
    writer.meeting(1)
    writer.body(1, 16, True, False)
    cuda = [
        f'extern "C" __global__ void {name}(const unsigned* in, unsigned* out, unsigned* counter) {{',
        "    __shared__ unsigned s[128];",
        "    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;",
        "    unsigned a = in[i], b = a * 2654435761u, c = b >> 7, d = i ^ 5;",
        *writer.cuda,
        "    out[i] = a ^ (b * 3) ^ (c * 5) ^ (d * 7);",
        "}",
    ]
    python = [
        "def thread(i, a, counter):",
        f"    b = a * 2654435761 & {MASK}; c = b >> 7; d = i ^ 5",
        *writer.python,
        f"    return (a ^ (b * 3) ^ (c * 5) ^ (d * 7)) & {MASK}",
    ]
    namespace: dict[str, Any] = {}
    exec("\n".join(python), namespace)
    return RandomKernel(name, "\n".join(cuda), namespace["thread"])


def run_block(kernel: RandomKernel, first: int, values: list[int], counter: list[int]) -> list[int]:
    """What the threads first, first + 1, ... of one block put out."""
    threads = [kernel.thread(first + n, value, counter) for n, value in enumerate(values)]
    results, answers = [0] * len(threads), [None] * len(threads)
    while True:
        asked = []
        for n, thread in enumerate(threads):
            try:
                asked.append(thread.send(answers[n]))  # type: ignore[arg-type]
            except StopIteration as end:
                results[n] = end.value
        if not asked:
            return results
        assert len(asked) == len(threads) and len({kind for kind, _ in asked}) == 1
        answers = _answers(asked[0][0], [value for _, value in asked])  # type: ignore[assignment]


def _answers(kind: str, values: list[int]) -> list[int]:
    lanes = range(len(values))
    if kind == "exchange":
        return values[::-1]
    if kind == "count":
        return [sum(bool(value & 2) for value in values)] * len(values)
    if kind == "shuffle":
        return [values[n ^ 1] for n in lanes]
    warps = [values[start : start + 32] for start in range(0, len(values), 32)]
    ballots = [sum(bool(value & 4) << lane for lane, value in enumerate(warp)) for warp in warps]
    return [ballots[n // 32] for n in lanes]
