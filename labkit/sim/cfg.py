"""Straight text to basic blocks, ordered so that diverged threads meet again as early as they can."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from labkit.errors import PtxError
from labkit.sim.inline import FlatBody
from labkit.sim.order import linear_order
from labkit.sim.program import EXIT, Barrier, Instruction, WarpSync
from labkit.sim.registers import destinations

# Under a predicate these become a branch around them: what they touch cannot be taken back by choosing a value.
BRANCHED_AROUND = frozenset(
    (
        *("ld", "ldu", "st", "atom", "red", "membar", "fence"),
        *("shfl", "vote", "match", "activemask", "mma", "bar", "barrier"),
        *("nanosleep", "trap", "brkpt", "vprintf", "__assertfail", "brx"),
    )
)
WARP_SYNC = frozenset(("shfl", "vote", "match", "mma"))
FULL_MASK = 0xFFFFFFFF


@dataclass
class RawBlock:
    """A basic block before code generation; ``instructions`` includes the branch, barrier or exit that ends it."""

    instructions: list[Instruction] = field(default_factory=list)
    successors: tuple[int, ...] = ()
    sync: WarpSync | None = None
    barrier: Barrier | None = None


def build_blocks(flat: FlatBody, single_step: bool = False) -> list[RawBlock]:
    """Blocks in reverse postorder, the entry first; blocks that nothing reaches are left out.

    single_step: every instruction becomes a block of its own, for stepping.
    """
    cutter = _Cutter(flat, single_step)
    cutter.cut()
    return _ordered(cutter.link())


class _Cutter:
    def __init__(self, flat: FlatBody, single_step: bool) -> None:
        self.flat = flat
        self.single_step = single_step
        self.blocks: list[RawBlock] = [RawBlock()]
        self.labels: dict[str, int] = {}
        self.skips = 0
        self.written: set[str] = set()  # registers written since the current block's warp operations began

    def cut(self) -> None:
        for item in self.flat.items:
            if isinstance(item, str):
                self.label(item)
            elif item.opcode == "brx":
                self.indirect_branch(item)
            elif item.predicate is not None and item.opcode in BRANCHED_AROUND:
                skip = f"$skip{self.skips}"
                self.skips += 1
                self.add(replace(item, opcode="bra", modifiers=(), operands=(skip,), negated=not item.negated))
                self.add(replace(item, predicate=None, negated=False))
                self.label(skip)
            else:
                self.add(item)

    def label(self, name: str) -> None:
        if self.blocks[-1].instructions:
            self.open_block()
        self.labels[name] = len(self.blocks) - 1

    def open_block(self) -> None:
        self.blocks.append(RawBlock())
        self.written = set()

    def indirect_branch(self, instruction: Instruction) -> None:
        """``brx.idx index, table`` as a chain of comparisons; the last target needs none."""
        index, table = instruction.operands
        targets = self.flat.branch_targets[table]
        for position, target in enumerate(targets[:-1]):
            matches = f"$case{self.skips}"
            self.skips += 1
            self.flat.registers[matches] = "pred"
            compare = replace(
                instruction, opcode="setp", modifiers=("eq", "u32"), operands=(matches, index, str(position))
            )
            self.add(replace(compare, predicate=None, negated=False))
            self.add(replace(instruction, opcode="bra", modifiers=(), operands=(target,), predicate=matches))
        self.add(replace(instruction, opcode="bra", modifiers=("uni",), operands=(targets[-1],), predicate=None))

    def add(self, instruction: Instruction) -> None:
        self.start_warp_operation(instruction)
        block = self.blocks[-1]
        block.instructions.append(instruction)
        self.written.update(destinations(instruction, self.flat.registers))
        barrier = barrier_of(instruction)
        if barrier is not None:
            block.barrier = barrier
        if barrier is not None or self.single_step or instruction.opcode in ("bra", "ret", "exit"):
            self.open_block()

    def start_warp_operation(self, instruction: Instruction) -> None:
        """Open a block before the first of a row of warp operations on the same lanes."""
        sync = warp_sync_of(instruction)
        if sync is None:
            return
        current = self.blocks[-1].sync
        same_lanes = current is not None and current.mask == sync.mask and sync.mask not in self.written
        if same_lanes and not sync.releases_alone and current is not None and not current.releases_alone:
            return
        if self.blocks[-1].instructions:
            self.open_block()
        self.blocks[-1].sync = sync
        self.written = set()

    def link(self) -> list[RawBlock]:
        """Fill in the successors of all blocks."""
        for index, block in enumerate(self.blocks):
            following = index + 1 if index + 1 < len(self.blocks) else EXIT
            last = block.instructions[-1] if block.instructions else None
            if last is None or last.opcode not in ("bra", "ret", "exit"):
                block.successors = (following,)
                continue
            target = EXIT if last.opcode != "bra" else self.target(last)
            block.successors = (target,) if last.predicate is None else (target, following)
        return self.blocks

    def target(self, branch: Instruction) -> int:
        label = branch.operands[0]
        if label not in self.labels:
            raise PtxError(
                f"PTX line {branch.site.ptx_line}: there is no label '{label}' for '{branch.site.text}'.",
                cure="Check the spelling of the label.",
            )
        return self.labels[label]


def warp_sync_of(instruction: Instruction) -> WarpSync | None:
    """What a warp operation waits for; None for all other instructions."""
    if instruction.opcode in ("bar", "barrier") and "warp" in instruction.modifiers:
        return WarpSync(_operand(instruction.operands[0]), instruction.site, releases_alone=True)
    if instruction.opcode not in WARP_SYNC:
        return None
    mask = FULL_MASK if instruction.opcode == "mma" else _operand(instruction.operands[-1])
    return WarpSync(mask, instruction.site, releases_alone=False)


def barrier_of(instruction: Instruction) -> Barrier | None:
    """The barrier of a ``bar`` or ``barrier`` instruction; None for all other instructions."""
    words = [word for word in instruction.modifiers if word not in ("cta", "aligned")]
    if instruction.opcode not in ("bar", "barrier") or "warp" in words:
        return None
    operands = list(instruction.operands)
    if words[0] != "red":
        threads = _operand(operands[1]) if len(operands) > 1 else None
        return Barrier(words[0], _operand(operands[0]), threads, None, False, None, instruction.site)
    result, number, *threads_and_predicate = operands
    predicate = threads_and_predicate.pop()
    threads = _operand(threads_and_predicate[0]) if threads_and_predicate else None
    name, negated = predicate.removeprefix("!"), predicate.startswith("!")
    return Barrier(words[1], _operand(number), threads, name, negated, result, instruction.site)


def _operand(word: str) -> str | int:
    """A register's name, or the value of a constant."""
    return int(word, 0) & FULL_MASK if word.lstrip("-")[:1].isdigit() else word


def _ordered(blocks: list[RawBlock]) -> list[RawBlock]:
    """Skip empty blocks, leave out unreachable ones and renumber the rest."""

    def arrival(index: int) -> int:
        while index != EXIT and not blocks[index].instructions:
            index = blocks[index].successors[0]
        return index

    successors = [tuple(arrival(index) for index in block.successors) for block in blocks]
    entry = arrival(0)
    if entry == EXIT:
        return []
    order = linear_order(entry, successors)
    number = {index: position for position, index in enumerate(order)} | {EXIT: EXIT}
    for index in order:
        blocks[index].successors = tuple(number[successor] for successor in successors[index])
    return [blocks[index] for index in order]
