"""Runs of Gated DeltaNet's kernels on the simulator, judged against a plain recurrence in fp64: for chapter 12."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.device.executor import use_executor
from labkit.device.sim_executor import recorded_launches
from labkit.device.sources import read_rung
from labkit.lab.op_counts import simulated
from labkit.ops import gdn
from labkit.ops.gdn_decode import gdn_decode
from labkit.ops.gdn_prefill import gdn_prefill
from labkit.ops.state_batch import StateBatch
from labkit.sim.api import Result
from labkit.sim.counters import Counters
from labkit.sim.findings import Finding
from labkit.sim.options import Options
from labkit.sim.trace import Trace

EPS = 1e-6
DECODE_TOLERANCE, PREFILL_TOLERANCE = 6e-4, 2e-3  # of a row, as the 2-norm of its error over its own


@dataclass(frozen=True)
class GdnOperands:
    """qkv: fp16 [T, q | k | v], q and k normalised, q scaled; z: fp16 [T, Hv dv]; b, a: fp16 [T, Hv]; a_log, dt_bias:
    fp32 [Hv]; norm_weight: fp32 [dv]; state: fp32 [slots, Hv, dk, dv], as before any run."""

    qkv: Tensor
    z: Tensor
    b: Tensor
    a: Tensor
    a_log: Tensor
    dt_bias: Tensor
    norm_weight: Tensor
    state: Tensor
    batch: StateBatch
    key_heads: int

    def by_heads(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, k [T, Hv, dk], v [T, Hv, dv], g, beta [T, Hv]: fp64, of what the kernels get."""
        q, k, v = gdn.split_heads(self.qkv.double(), self.key_heads, *self.state.shape[1:3])
        g = -self.a_log.double().exp() * F.softplus(self.a.double() + self.dt_bias.double())
        return q, k, v, g, self.b.double().sigmoid()

    def on(self, device: torch.device | str) -> GdnOperands:
        """The same on another device."""
        names = ("qkv", "z", "b", "a", "a_log", "dt_bias", "norm_weight", "state")
        spans = self.batch.spans
        counts, starts, slots = [end - first for first, end, *_ in spans], [s[2] for s in spans], [s[3] for s in spans]
        moved = {name: getattr(self, name).to(device) for name in names}
        return replace(self, **moved, batch=StateBatch.of(counts, starts, slots, device))

    def decode(self, rung: str | None = None) -> Tensor:
        """``gdn_decode`` of these, on the current executor; ``state`` changes. Every sequence has one row."""
        weights = self.a_log, self.dt_bias, self.norm_weight, EPS, self.state
        return gdn_decode(self.qkv, self.z, self.b, self.a, *weights, self.batch, self.key_heads, rung=rung)

    def prefill(self, rung: str | None = None) -> Tensor:
        """``gdn_prefill`` of these, on the current executor; ``state`` changes."""
        weights = self.a_log, self.dt_bias, self.state
        return gdn_prefill(self.qkv, self.b, self.a, *weights, self.batch, self.key_heads, rung=rung)

    def part(self, first: int, end: int, state: Tensor) -> GdnOperands:
        """Rows first .. end - 1 of the only sequence, as a step of their own that finds ``state``."""
        start = self.batch.spans[0][2] + first
        batch = StateBatch.of([end - first], [start], [self.batch.spans[0][3]])
        rows = {name: getattr(self, name)[first:end].contiguous() for name in ("qkv", "z", "b", "a")}
        return replace(self, **rows, state=state, batch=batch)


@dataclass(frozen=True)
class GdnRun:
    """A rung's run. out, state: what it gave; exact_out, exact_state: in fp64, the same shapes; results: of each of its
    launches, in order."""

    rung: str
    out: Tensor
    state: Tensor
    exact_out: Tensor
    exact_state: Tensor
    tolerance: float
    results: list[Result]

    @property
    def error(self) -> float:
        """Of the worst row of a head, of the outputs and of the states."""
        pairs = (self.out, self.exact_out), (self.state.flatten(2), self.exact_state.flatten(2))
        errors = [((x.double() - exact).norm(dim=-1) / exact.norm(dim=-1)).max() for x, exact in pairs]
        return float(torch.stack(errors).max())  # which NaN passes through

    @property
    def matches(self) -> bool:
        return self.error <= self.tolerance  # NaN is not

    @property
    def findings(self) -> list[Finding]:
        return [finding for result in self.results for finding in result.findings]

    @property
    def counters(self) -> list[Counters]:
        """Of each launch."""
        return [result.counters for result in self.results if result.counters is not None]

    @property
    def mma(self) -> int:
        """Of warps, over all launches."""
        return sum(counters.mma for counters in self.counters)

    @property
    def instructions(self) -> list[int]:
        """Of warps in each launch, in PTX; moves between registers, which mostly vanish, are left out."""
        kinds = [counters.instructions() for counters in self.counters]
        return [sum(warps for kind, (warps, _) in each.items() if kind != "move") for each in kinds]


def random_gdn_operands(
    rows: Sequence[int], starts: Sequence[int] | None = None, *, key_heads: int = 1, heads: int = 1, dim: int = 64
) -> GdnOperands:
    """Sequences with so many rows, from these positions on (all from 0 by default), each in the slot of its number.

    Decays from 0.4 to nearly 1; states that are not empty are random. Draws from torch's generator.
    """
    starts, total = starts or [0] * len(rows), sum(rows)
    unit = F.normalize(torch.randn(total, 2, key_heads, dim), dim=-1)
    unit[:, 0] *= dim**-0.5
    qkv = torch.cat((unit.flatten(1), torch.randn(total, heads * dim)), dim=1).half()
    z, b, a = (torch.randn(total, width).half() for width in (heads * dim, heads, heads))
    state = torch.randn(len(rows), heads, dim, dim)
    state[[s for s, start in enumerate(starts) if start == 0]] = torch.nan  # which nothing may read
    batch = StateBatch.of(list(rows), list(starts), list(range(len(rows))))
    weights = torch.empty(heads).uniform_(-3, -1), torch.randn(heads) / 2, torch.empty(dim).uniform_(0.5, 1.5)
    return GdnOperands(qkv, z, b, a, *weights, state, batch, key_heads)


def exact_recurrence(operands: GdnOperands) -> tuple[Tensor, Tensor]:
    """The delta rule token by token: outputs [T, Hv, dv] before the norm and states of the batch's slots, in fp64."""
    q, k, v, g, beta = operands.by_heads()
    states = operands.state.double()
    out = torch.empty_like(v)
    for first, end, start, slot in operands.batch.spans:
        state = states[slot][None] if start else torch.zeros_like(states[slot][None])
        for t in range(first, end):
            q_t, k_t, v_t, g_t, beta_t = (x[t : t + 1] for x in (q, k, v, g, beta))
            o, state = gdn.gdn_decode(q_t, k_t, v_t, g_t, beta_t, state)
            out[t] = o[0]
        states[slot] = state[0]
    return out, states


def run_decode(rung: str, operands: GdnOperands, *, trace: bool = False) -> GdnRun:
    """One row of each sequence through ``gdn_decode``. Raises what the operation raises."""
    o, exact_state = exact_recurrence(operands)
    z = operands.z.double().view(o.shape)
    unit = o * (o.square().mean(-1, keepdim=True) + EPS).rsqrt()
    exact = operands.norm_weight.double() * unit * F.silu(z)
    own = replace(operands, state=operands.state.clone())
    out, result = simulated(own.decode, rung=rung, trace=trace)
    return GdnRun(rung, out.view(o.shape), own.state, exact, exact_state, DECODE_TOLERANCE, [result])


def run_prefill(rung: str, operands: GdnOperands, *, trace: bool = False) -> GdnRun:
    """All rows through ``gdn_prefill``, in however many launches. Raises what the operation raises."""
    exact, exact_state = exact_recurrence(operands)
    own = replace(operands, state=operands.state.clone())
    with use_executor("sim"), recorded_launches(Options(trace=trace)) as results:
        out = own.prefill(rung)
    return GdnRun(rung, out, own.state, exact, exact_state, PREFILL_TOLERANCE, results)


@dataclass(frozen=True)
class StateTraffic:
    """Of a launch: how often each byte of the states was loaded and stored, and by how many requests of warps."""

    loaded: float
    stored: float
    load_requests: int
    store_requests: int


def state_traffic(run: GdnRun) -> StateTraffic:
    """Of the first launch, which has to be traced: raises ValueError otherwise."""
    trace = run.counters[0]
    if not isinstance(trace, Trace):
        raise ValueError("the run was not traced")
    (loaded, loads), (stored, stores) = (times_moved(trace, kind, run.state) for kind in ("load", "store"))
    return StateTraffic(loaded, stored, loads, stores)


def times_moved(trace: Trace, kind: str, tensor: Tensor) -> tuple[float, int]:
    """How often an element of a tensor was loaded or stored ("load", "store") on average, and by how many requests."""
    accesses = trace.at(space="global", kind=kind)
    own = [each for each in accesses if 0 <= each.offsets(tensor)[0] < tensor.nbytes]
    return sum(each.nbytes * len(each.lanes) for each in own) / tensor.nbytes, len(own)


def costly_lines(run: GdnRun, op: str, launch: int, most: int = 4) -> list[tuple[float, str]]:
    """(share of the instructions of a launch, line of the source) of the costliest lines, the first the worst."""
    source = read_rung(op, run.rung)
    spent: dict[str, int] = {}
    for (file, number), counts in run.counters[launch].by_line().items():
        text = next((text for name, text in source.headers.items() if file.endswith(name)), source.text)
        line = text.splitlines()[number - 1].strip() if file and number else ""
        spent[line] = spent.get(line, 0) + counts.warp_instructions
    total = sum(spent.values())
    return [(count / total, line) for line, count in sorted(spent.items(), key=lambda item: -item[1])[:most]]
