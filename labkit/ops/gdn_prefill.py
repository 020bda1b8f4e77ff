"""The gated delta rule over many rows of each sequence (Gated DeltaNet, Yang et al. 2024, arXiv:2412.06464).

Per value head, with state S [dk, dv]:
    S <- e^g S;   d = beta (v - S^T k);   S <- S + k d^T;   o = S^T q
    beta = sigmoid(b),   g = -exp(a_log) softplus(a + dt_bias)
Rows are worked on in chunks of 64, which lie on absolute multiples of 64 positions: a prompt cut at such a multiple
gives the same bits as in one piece. The chunked form: Yang et al. 2024, arXiv:2406.06484; what the kernels make of it:
cuda/gdn_prefill/within.cuh.

First all chunks are prepared side by side, then a scan carries the states through them. What the first leaves for the
second lies in a bounded workspace: more chunks than fit it go in several rounds, with the same bits. On the tensor
cores q, k, P, W and copies of S and d are halves. P, S and d are scaled by powers of two, so that none overflows and
small ones keep their digits; d is two halves where keys repeat. Sums, U, gates and the state itself are fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from labkit.device import Kernel, Out, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops import gdn
from labkit.ops.capability import is_v100
from labkit.ops.checks import Tensors, aligned, check_tensor, chosen_rung, named_sizes, span
from labkit.ops.layout import CHUNK, GDN_DIMS
from labkit.ops.state_batch import StateBatch

OP = "gdn_prefill"
RUNGS = ["1_recurrent", "2_chunked", "3_tensor_cores"]
WORKSPACE_BYTES = 64 << 20  # for all heads and the chunks of a round; a single chunk may need more
SLICE = 32  # columns of a state that a block of the scan has, as the sources say
WITHIN_THREADS = 256
NOTES = 2 * CHUNK + 3  # fp32 numbers beside the matrices of a chunk and head


def gdn_prefill(
    qkv: Tensor,
    b: Tensor,
    a: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    batch: StateBatch,
    key_heads: int,
    *,
    rung: str | None = None,
) -> Tensor:
    """qkv: [T, q | k | v], as gdn_conv leaves it; returns fp32 [T, Hv, dv].

    q, k: key_heads heads of dk, normalised, q scaled by dk^-0.5; v: Hv heads of dv; value head j reads key head
    j // (Hv / key_heads). b, a: [T, Hv], rows of any distance. a_log, dt_bias: fp32 [Hv]. state: dense fp32
    [slots, Hv, dk, dv], updated in place in the slots of ``batch``; that of a sequence at position 0 counts as zero and
    is not read. The kernels take fp16 qkv, b and a, and dk and dv of 64 or 128.

    Without a rung, ``3_tensor_cores`` runs on a V100 and on the simulator, ``2_chunked`` on newer GPUs, which emulate
    that instruction. Raises KernelArgumentError for what does not fit.
    """
    kernels = executor_for(qkv, state) != "torch"
    _check(qkv, b, a, a_log, dt_bias, state, batch, key_heads, kernels)
    if not kernels:
        return reference(qkv, b, a, a_log, dt_bias, state, batch, key_heads)
    if rung is None and not is_v100(qkv.device):
        rung = "2_chunked"
    rung = chosen_rung(OP, rung, RUNGS)
    b, a = (x if x.stride(1) == 1 else x.contiguous() for x in (b, a))
    step = _Step(aligned(qkv), b, a, a_log.contiguous(), dt_bias.contiguous(), state, batch, key_heads, rung)
    return step.recurrent() if rung == "1_recurrent" else step.chunked()


def reference(
    qkv: Tensor,
    b: Tensor,
    a: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    batch: StateBatch,
    key_heads: int,
) -> Tensor:
    """The definition in torch, one sequence after the other: fp32, chunked like the kernels."""
    _, heads, key_dim, _ = state.shape
    q, k, v = gdn.split_heads(qkv.float(), key_heads, heads, key_dim)
    g, beta = gdn.gates(a, b, a_log, dt_bias)
    out = torch.empty(v.shape, device=v.device)
    for first, behind, start, slot in batch.spans:
        rows = slice(first, behind)
        before = state[slot] if start else torch.zeros_like(state[slot])
        out[rows], state[slot] = gdn.gdn_prefill(q[rows], k[rows], v[rows], g[rows], beta[rows], before, start)
    return out


def macros(key_dim: int, value_dim: int) -> dict[str, int]:
    """How the kernels are compiled. Raises KernelArgumentError for heads that they are not built for."""
    if key_dim not in GDN_DIMS or value_dim not in GDN_DIMS:
        built = ", ".join(map(str, GDN_DIMS))
        raise KernelArgumentError(
            f"{OP}: heads have {key_dim} and {value_dim} elements; kernels are built for {built}.",
            cure="Others run on the executor torch.",
        )
    return {"KEY_DIM": key_dim, "VALUE_DIM": value_dim}


def chunk_bytes(rung: str, key_dim: int, value_dim: int) -> int:
    """What one chunk of one head needs of the workspace: U in fp32, W and P as the rung has them, and notes."""
    element = _element(rung).itemsize
    return 4 * CHUNK * value_dim + element * CHUNK * (key_dim + CHUNK) + 4 * NOTES


def _element(rung: str) -> torch.dtype:
    """Of W and P."""
    return torch.float16 if rung == "3_tensor_cores" else torch.float32


@dataclass(frozen=True)
class _Step:
    """Checked arguments of one call, and its launches."""

    qkv: Tensor
    b: Tensor
    a: Tensor
    a_log: Tensor
    dt_bias: Tensor
    state: Tensor
    batch: StateBatch
    key_heads: int
    rung: str

    def recurrent(self) -> Tensor:
        """One launch."""
        batch, out = self.batch, self._new_out()
        where = [self.state, batch.slots, batch.starts, batch.row_starts, self.key_heads, Out(out)]
        heads, _, value_dim = self.state.shape[1:]
        self._kernel(OP).launch((heads, batch.sequences), value_dim, [self.qkv, *self._gates, *where])
        return out

    def chunked(self) -> Tensor:
        """Two launches a round."""
        heads, key_dim, value_dim = self.state.shape[1:]
        fitting = max(1, WORKSPACE_BYTES // (heads * chunk_bytes(self.rung, key_dim, value_dim)))
        out, chunks = self._new_out(), self.batch.chunks
        room = self._workspace(min(fitting, chunks))
        for first in range(0, chunks, fitting):
            self._round(first, min(fitting, chunks - first), room, out)
        return out

    def _round(self, first: int, count: int, room: list[Tensor], out: Tensor) -> None:
        """Chunks first .. first + count - 1 of the batch."""
        batch, (heads, key_dim, value_dim) = self.batch, self.state.shape[1:]
        parts = [x[:count] for x in room]
        starts = [batch.starts, batch.row_starts, batch.chunk_starts]
        numbers = [batch.sequences, self.key_heads, first]
        arguments = [self.qkv, *self._gates, *starts, *numbers, *map(Out, parts)]
        self._kernel("gdn_within_chunks").launch((heads, count), WITHIN_THREADS, arguments)
        arguments = [self.qkv, *parts, self.state, batch.slots, *starts, self.key_heads, first, count]
        threads = 2 * key_dim if self.rung == "3_tensor_cores" else WITHIN_THREADS
        whole = Out(out) if count == batch.chunks else out
        self._kernel(OP).launch((value_dim // SLICE, heads, batch.sequences), threads, [*arguments, whole])

    def _workspace(self, chunks: int) -> list[Tensor]:
        """u, w, p and notes."""
        heads, key_dim, value_dim = self.state.shape[1:]
        element, device = _element(self.rung), self.qkv.device
        sizes = ((CHUNK * value_dim, torch.float32), (CHUNK * key_dim, element), (CHUNK**2, element))
        kinds = (*sizes, (NOTES, torch.float32))
        return [torch.empty(chunks, heads, size, dtype=dtype, device=device) for size, dtype in kinds]

    def _new_out(self) -> Tensor:
        heads, _, value_dim = self.state.shape[1:]
        return torch.empty(self.qkv.shape[0], heads, value_dim, dtype=torch.float32, device=self.qkv.device)

    @property
    def _gates(self) -> list[Tensor | int]:
        return [span(self.b), self.b.stride(0), span(self.a), self.a.stride(0), self.a_log, self.dt_bias]

    def _kernel(self, entry: str) -> Kernel:
        return _kernel(self.rung, entry, *self.state.shape[2:])


@cache
def _kernel(rung: str, entry: str, key_dim: int, value_dim: int) -> Kernel:
    return Kernel(OP, rung, entry, macros(key_dim, value_dim))


def _check(
    qkv: Tensor,
    b: Tensor,
    a: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    batch: StateBatch,
    key_heads: int,
    kernels: bool,
) -> None:
    """A look at every argument. Raises KernelArgumentError."""
    if not isinstance(batch, StateBatch):
        raise KernelArgumentError(f"{OP}: batch is a {type(batch).__name__}.", cure="Give a StateBatch.")
    sizes = named_sizes(OP, {"state": (state, torch.float32, ("slots", "Hv", "dk", "dv"))})
    heads, key_dim, value_dim = (sizes[name] for name in ("Hv", "dk", "dv"))
    if not isinstance(key_heads, int) or isinstance(key_heads, bool) or key_heads < 1 or heads % key_heads:
        message = f"{OP}: {key_heads!r} key heads for {heads} value heads."
        raise KernelArgumentError(message, cure="Value heads share key heads evenly: give a divisor of their number.")
    for name, x in (("qkv", qkv), ("b", b), ("a", a)):
        check_tensor(OP, name, x)
    dtypes = [torch.float16] * 3 if kernels else [x.dtype for x in (qkv, b, a)]
    width = 2 * key_heads * key_dim + heads * value_dim
    given: Tensors = {
        "qkv": (qkv, dtypes[0], (batch.rows, width)),
        "b": (b, dtypes[1], (batch.rows, heads)),
        "a": (a, dtypes[2], (batch.rows, heads)),
        "a_log": (a_log, torch.float32, (heads,)),
        "dt_bias": (dt_bias, torch.float32, (heads,)),
    }
    named_sizes(OP, given)
    batch.check(OP, sizes["slots"])
    if not kernels:
        return
    macros(key_dim, value_dim)
    if not state.is_contiguous():
        message = f"{OP}: state has strides {list(state.stride())}."
        raise KernelArgumentError(message, cure="It changes in place: give a dense tensor.")
