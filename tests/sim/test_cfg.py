"""Basic blocks: where they begin and end, their order, what flows between them, and what is left out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from helpers.ptx_snippets import kernel_of

from labkit.sim.machine import launch
from labkit.sim.order import linear_order
from labkit.sim.program import EXIT, Block, Kernel

REGISTERS = ".reg .pred %p<6>; .reg .b32 %r<9>; .reg .b64 %d<4>; .reg .f32 %f<40>;"


def kernel(body: str, **settings: bool) -> Kernel:
    return kernel_of(
        f".visible .entry k(.param .u64 out) {{ {REGISTERS} ld.param.u64 %d1, [out];\n{body}\n}}", **settings
    )


def opcodes(block: Block) -> list[str]:
    return [instruction.opcode for instruction in block.instructions]


@pytest.mark.parametrize(
    ("successors", "order"),
    [
        ([(1, 2), (3,), (3,), (EXIT,)], [0, 2, 1, 3]),  # either way first the one that falls through
        ([(1,), (2, 3), (1,), (EXIT,)], [0, 1, 2, 3]),  # while: body before what follows, whichever branch leaves
        ([(1,), (3, 2), (1,), (EXIT,)], [0, 1, 2, 3]),
        ([(1,), (2,), (3, 5), (4, 2), (1,), (EXIT,)], [0, 1, 2, 3, 4, 5]),  # nested loops stay in one piece
        ([(2,), (EXIT,), (1,), (3,)], [0, 2, 1]),  # block 3 cannot be reached
    ],
)
def test_order_keeps_loops_together(successors: list[tuple[int, ...]], order: list[int]) -> None:
    assert linear_order(0, successors) == order


def test_order_is_topological_outside_loops(seed: int) -> None:
    """In random acyclic graphs every edge goes forward."""
    random = np.random.default_rng(seed)
    for _ in range(50):
        size = int(random.integers(2, 30))
        graph = [tuple(int(x) for x in random.integers(n + 1, size + 1, 2)) for n in range(size)]
        graph = [tuple(EXIT if target == size else target for target in targets) for targets in graph]
        position = {node: place for place, node in enumerate(linear_order(0, graph))}
        for node in position:
            assert all(target == EXIT or position[target] > position[node] for target in graph[node])


def test_blocks_end_at_branches_labels_and_barriers() -> None:
    k = kernel(
        """mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 8;
        @%p1 bra LOW;
        add.s32 %r1, %r1, 1; bar.sync 0;
        LOW: add.s32 %r1, %r1, 2; unused: add.s32 %r1, %r1, 3; @!%p1 ret;
        st.global.u32 [%d1], %r1; ret;"""
    )
    assert [opcodes(block)[-1] for block in k.blocks] == ["bra", "bar", "add", "ret", "ret"]
    assert [block.successors for block in k.blocks] == [(2, 1), (2,), (3,), (EXIT, 4), (EXIT,)]
    assert k.blocks[1].barrier is not None
    assert (k.blocks[1].barrier.kind, k.blocks[1].barrier.number) == ("sync", 0)


def test_predicated_memory_operations_become_branches() -> None:
    k = kernel(
        "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 3; @%p1 st.global.u32 [%d1], %r1; "
        "@%p1 add.s32 %r1, %r1, 1; st.global.u32 [%d1+4], %r1; ret;"
    )
    assert [opcodes(block) for block in k.blocks] == [["ld", "mov", "setp", "bra"], ["st"], ["add", "st", "ret"]]
    out = np.zeros(2, np.uint32)
    launch(k, 1, 4, [out])
    assert out[0] == 3


def test_block_reductions_read_and_write_registers_around_the_block() -> None:
    k = kernel(
        """mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 1;
        bar.red.popc.u32 %r3, 0, 64, !%p1; st.global.u32 [%d1], %r3; ret;"""
    )
    barrier = k.blocks[0].barrier
    assert barrier is not None
    assert (barrier.kind, barrier.threads, barrier.predicate, barrier.negated) == ("popc", 64, "%p1", True)
    assert barrier.result == "%r3"
    assert "%p1" in k.blocks[0].outputs
    assert "%r3" not in k.blocks[0].outputs
    assert "%r3" in k.blocks[1].inputs
    out = np.zeros(1, np.uint32)
    launch(k, 1, 64, [out])
    assert out[0] == 32


def test_warp_operations_open_a_block_for_their_lanes() -> None:
    k = kernel(
        """mov.u32 %r1, %tid.x; mov.u32 %r2, -1; activemask.b32 %r3;
        shfl.sync.bfly.b32 %r4, %r1, 1, 31, %r2; shfl.sync.bfly.b32 %r4, %r4, 2, 31, -1;
        vote.sync.ballot.b32 %r5, %p1, %r3;
        bar.warp.sync %r3; bar.warp.sync %r3; shfl.sync.idx.b32 %r5, %r4, 0, 31, %r3;
        add.s32 %r3, %r3, 0; vote.sync.ballot.b32 %r6, %p1, %r3; add.s32 %r6, %r6, %r5;
        st.global.u32 [%d1], %r6; ret;"""
    )
    syncs = [(block.sync.mask, block.sync.releases_alone) for block in k.blocks if block.sync]
    assert syncs == [(0xFFFFFFFF, False), ("%r3", False), ("%r3", True), ("%r3", True), ("%r3", False), ("%r3", False)]
    assert k.blocks[0].sync is None
    assert all(
        block.sync is None or block.sync.mask in block.inputs or block.sync.mask == 0xFFFFFFFF for block in k.blocks
    )


def test_indirect_branches_become_comparisons() -> None:
    k = kernel(
        """mov.u32 %r1, %tid.x; T: .branchtargets A, B, C; brx.idx %r1, T;
        A: mov.u32 %r2, 10; bra END; B: mov.u32 %r2, 20; bra END; C: mov.u32 %r2, 30;
        END: mad.wide.u32 %d1, %r1, 4, %d1; st.global.u32 [%d1], %r2; ret;"""
    )
    out = np.zeros(3, np.uint32)
    launch(k, 1, 3, [out])
    assert out.tolist() == [10, 20, 30]


def test_dead_code_is_left_out_but_counted() -> None:
    k = kernel(
        "mov.u32 %r1, %tid.x; add.s32 %r2, %r1, 1; mul.lo.s32 %r3, %r2, 5; "
        "ld.global.u32 %r4, [%d1+64]; st.global.u32 [%d1], %r1; ret;"
    )
    (block,) = k.blocks
    assert block.classes == Counter(
        {"move": 1, "alu.int": 2, "load.global": 1, "load.param": 1, "store.global": 1, "exit": 1}
    )
    assert "_r3" not in k.python
    assert k.python.count("threads.load") == 1  # a load that nobody uses may still be out of bounds


def test_constants_reach_their_uses() -> None:
    k = kernel(
        """.shared .align 16 .b8 tile[256]; mov.u32 %r1, tile; mov.u64 %d2, tile; add.s64 %d2, %d2, 16;
            add.s64 %d3, %d2, -8;
        mov.u32 %r2, 7; add.s32 %r3, %r2, %r2; st.shared.u32 [%r1+4], %r3; ld.shared.u32 %r4, [%d3];
        st.global.u32 [%d1], %r4; ret;"""
    )
    text = k.python
    assert "threads.store('shared', c_u64_0, 4, 4, 1" in text
    assert "_r2" not in text
    assert "_r3 = c_u32_7 + c_u32_7" in text
    assert "_d2" in text  # written twice: no constant


def mma(number: int, a: str = "%r1", extra: str = "row.col.f32.f16.f16.f32") -> str:
    d = ", ".join(f"%f{8 * number + i}" for i in range(8))
    return f"mma.sync.aligned.m8n8k4.{extra} {{{d}}}, {{{a}, %r2}}, {{%r3, %r4}}, {{{d}}};"


def groups(body: str) -> list[int]:
    """Numbers of mma in one call each, in order."""
    stores = "".join(f"st.global.f32 [%d1+{4 * i}], %f{i};" for i in range(32))
    lines = [line for line in kernel(body + stores + "ret;").python.splitlines() if "threads.mma(" in line]
    return [line.rsplit("[", 1)[1].count(",") + 1 for line in lines]


def test_independent_mma_share_a_call() -> None:
    assert groups(mma(0) + mma(1) + mma(2)) == [3]
    assert groups(mma(0) + mma(0)) == [1, 1]  # the second adds to what the first makes
    assert groups(mma(0) + mma(1, extra="col.col.f32.f16.f16.f32")) == [1, 1]


def test_mma_move_past_what_does_not_touch_them() -> None:
    assert groups(mma(0) + "add.s32 %r5, %r6, 1;" + mma(1)) == [2]
    assert groups(mma(0) + "add.s32 %r5, %r6, 1;" + mma(1, a="%r5")) == [1, 1]  # reads what was made in between
    assert groups(mma(0) + "add.f32 %f30, %f8, %f8;" + mma(1)) == [1, 1]  # writes what was read in between
    assert groups(mma(0) + "mov.f32 %f8, %f31;" + mma(1)) == [1, 1]  # adds to what was written in between


def test_single_step_has_one_instruction_a_block_and_keeps_all() -> None:
    body = "mov.u32 %r1, 5; add.s32 %r2, %r1, 1; mul.lo.s32 %r3, %r2, 2; st.global.u32 [%d1], %r2; ret;"
    k = kernel(body, single_step=True)
    assert [opcodes(block) for block in k.blocks] == [["ld"], ["mov"], ["add"], ["mul"], ["st"], ["ret"]]
    assert k.blocks[3].outputs == ("%r3",)
    out = np.zeros(1, np.uint32)
    launch(k, 1, 1, [out])
    assert out[0] == 6
