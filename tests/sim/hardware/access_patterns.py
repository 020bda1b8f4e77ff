"""Kernels whose sectors and bank conflicts a hardware profiler has counted (recorded/access.json)."""

from __future__ import annotations

import numpy as np
from sim.hardware.programs import Buffers, Launch, Program

N = 128  # side of the transposed matrices
BLOCK = (256, 1, 1)
METRICS = (
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
)


def _buffers(random: np.random.RandomState) -> Buffers:
    return {
        "in": np.arange(65536, dtype=np.float32),
        "out": np.zeros(65536, np.float32),
        "index": random.randint(0, 65536, 4096).astype(np.int32),
    }


def _square(entry: str) -> Launch:
    return Launch(entry, (N // 32, N // 32, 1), (32, 8, 1), ("in", "out", np.int32(N)))


# Named as in the record; the same kernel stands there more than once, with another stride.
PATTERNS: dict[str, Launch] = {
    "copy": Launch("copy_strided", (16, 1, 1), BLOCK, ("in", "out", np.int32(1))),
    "copy, stride 2": Launch("copy_strided", (16, 1, 1), BLOCK, ("in", "out", np.int32(2))),
    "copy, stride 8": Launch("copy_strided", (16, 1, 1), BLOCK, ("in", "out", np.int32(8))),
    "copy, float4": Launch("copy_float4", (16, 1, 1), BLOCK, ("in", "out")),
    "copy, off by one": Launch("copy_offset", (16, 1, 1), BLOCK, ("in", "out", np.int32(1))),
    "broadcast": Launch("copy_strided", (16, 1, 1), BLOCK, ("in", "out", np.int32(0))),
    "random gather": Launch("gather", (16, 1, 1), BLOCK, ("in", "index", "out")),
    "transpose, naive": _square("transpose_naive"),
    "transpose, tile": _square("transpose_tile"),
    "transpose, padded tile": _square("transpose_padded"),
    "shared, stride 1": Launch("shared_stride", (4, 1, 1), BLOCK, ("out", np.int32(1))),
    "shared, stride 2": Launch("shared_stride", (4, 1, 1), BLOCK, ("out", np.int32(2))),
    "shared, stride 33": Launch("shared_stride", (4, 1, 1), BLOCK, ("out", np.int32(33))),
    "shared, stride 32": Launch("shared_stride", (4, 1, 1), BLOCK, ("out", np.int32(32))),
    "shared, float4": Launch("shared_vector", (4, 1, 1), BLOCK, ("out",)),
    "shared, broadcast": Launch("shared_stride", (4, 1, 1), BLOCK, ("out", np.int32(0))),
    "shared, double, stride 1": Launch("shared_double", (4, 1, 1), BLOCK, ("out", np.int32(1))),
    "shared, double, stride 2": Launch("shared_double", (4, 1, 1), BLOCK, ("out", np.int32(2))),
    "shared, double, stride 16": Launch("shared_double", (4, 1, 1), BLOCK, ("out", np.int32(16))),
    "shared, double, broadcast": Launch("shared_double", (4, 1, 1), BLOCK, ("out", np.int32(0))),
    "shared, float4, stride 2": Launch("shared_wide", (4, 1, 1), BLOCK, ("out", np.int32(2))),
    "shared, float4, stride 3": Launch("shared_wide", (4, 1, 1), BLOCK, ("out", np.int32(3))),
    "shared, float4, stride 8": Launch("shared_wide", (4, 1, 1), BLOCK, ("out", np.int32(8))),
    "shared, random": Launch("shared_gather", (16, 1, 1), BLOCK, ("index", "out")),
    "copy, bytes": Launch("copy_bytes", (16, 1, 1), BLOCK, ("in", "out")),
    "copy, structures": Launch("copy_structs", (16, 1, 1), BLOCK, ("in", "out", np.int32(4000))),
    "transpose, half, padded tile": Launch("transpose_half", (4, 4, 1), (32, 8, 1), ("in", "out", np.int32(N))),
    "histogram": Launch("histogram_shared", (4, 1, 1), BLOCK, ("in", "out", np.int32(9000))),
    "reduction, strided": Launch("reduce_shared", (16, 1, 1), BLOCK, ("in", "out")),
}

ACCESS = Program("access", _buffers, tuple(PATTERNS.values()), {"out": 0}, lambda _: {})
