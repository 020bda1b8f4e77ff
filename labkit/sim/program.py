"""What the simulator makes of PTX before it runs: a module of kernels, each a graph of basic blocks.

`parse` reads PTX into instructions, `cfg` cuts them into blocks, `codegen` turns each block into one Python function
over NumPy arrays, and `machine` runs the blocks for all threads of a launch at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

EXIT = -1  # successor of a block whose threads end


@dataclass(frozen=True)
class Site:
    """One PTX instruction as findings and counters name it."""

    index: int  # position in Kernel.sites
    ptx_line: int  # 1-based line of the PTX text
    file: str  # CUDA source file that .loc names; "" without -lineinfo
    line: int  # 1-based line there; 0 without -lineinfo
    text: str  # the instruction as written, one space between words
    kind: str  # class for the counters, such as "load.global", "alu.f32", "mma"


@dataclass(frozen=True)
class Instruction:
    """opcode "ld", modifiers ("global", "nc", "v4", "f32"), operands as written ("{%f1,%f2}", "[%rd1+8]")."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    predicate: str | None  # register without "@" and "!"
    negated: bool
    site: Site


@dataclass(frozen=True)
class Variable:
    """A named place in memory: a kernel parameter, a shared or local array, or a module's global or constant."""

    name: str
    space: str  # "param", "shared", "local", "global", "const"
    type: str  # element type, such as "f32"
    size: int  # bytes in all; 0 for an unsized extern array (dynamic shared memory)
    align: int  # bytes
    offset: int = 0  # bytes from the start of its space (param, shared, local)
    initial: bytes | None = None  # global and const only; None: zeros
    pointers: tuple[tuple[int, str, int], ...] = ()  # (offset, name, distance): at offset stands an address in name

    @property
    def is_struct(self) -> bool:
        """Whether a parameter is a struct: the compiler writes those, half among them, as arrays of bytes."""
        return self.type == "b8" and self.size > 1


@dataclass(frozen=True)
class WarpSync:
    """A block that starts with an instruction which waits for the lanes of its mask (shfl, vote, match, mma, ...)."""

    mask: str | int  # register that holds the member mask, or the mask itself
    site: Site
    releases_alone: bool  # bar.warp.sync: any other bar.warp.sync with the same mask is a partner, wherever it stands


@dataclass(frozen=True)
class Barrier:
    """A block that ends with a barrier of the thread block; operands are registers (str) or constants."""

    kind: str  # "sync", "arrive", "popc", "and", "or"
    number: str | int
    threads: str | int | None  # None: all threads of the block
    predicate: str | None  # register that the reductions combine
    negated: bool
    result: str | None  # register that receives the reduction
    site: Site


@dataclass
class Block:
    """A basic block.

    run(threads, *inputs) -> (*outputs, condition): inputs and outputs are register arrays in the order named;
    condition is a boolean array that is true where ``successors[0]`` is taken, or None where there is one successor.
    """

    index: int  # reverse postorder; the entry is 0
    instructions: list[Instruction]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    successors: tuple[int, ...]  # (next,), (taken, not taken); EXIT where threads end
    run: Callable[..., tuple[Any, ...]] | None = None
    sync: WarpSync | None = None
    barrier: Barrier | None = None
    classes: Counter[str] = field(default_factory=Counter)  # instructions by Site.kind, per execution of one thread


@dataclass
class Kernel:
    """One .entry, ready to run."""

    name: str
    parameters: list[Variable]
    registers: dict[str, str]  # name -> PTX type
    shared: dict[str, Variable]
    shared_bytes: int  # static; dynamic shared memory starts here (aligned to 16)
    local: dict[str, Variable]
    local_bytes: int  # of one thread
    sites: list[Site]
    blocks: list[Block]
    module: Module
    max_threads: int | None = None  # __launch_bounds__
    python: str = ""  # the generated source, for readers
    live: list[frozenset[str]] = field(default_factory=list)  # per block, registers that may be read from its start on


@dataclass
class Module:
    """One PTX text."""

    ptx: str
    target: str  # "sm_70"
    kernels: Mapping[str, Kernel]  # built when first asked for
    variables: dict[str, Variable]  # module-level global and const
