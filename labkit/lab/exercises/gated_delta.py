"""Checks of chapter 12: a chunk's deltas by forward substitution, and a step that goes over the state once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.lab.exercises.running import first_finding, simulate, staged
from labkit.lab.gdn_run import times_moved

ROWS, COLUMNS = 16, 32  # of the state in the second exercise
CHUNK_RULES = {
    "solved": "Row i is beta[i] V[i] minus the sum over j < i of A[i, j] U[j]: of rows of U, which are done already.",
    "sign": "The system is (I + A) U = beta V. What A brings stands on the left; it is subtracted on the right.",
    "beta": "A has the beta of its row inside already; V has not: its row i counts beta[i] times.",
}
STEP_RULES = {
    "decay": "The state decays first: what the key finds is decay times S^T k, and what is kept decay times S.",
    "output": "The output looks at the state after the write: S^T q + (k . q) d, with S decayed.",
    "state": "The new state is decay * S[i] + k[i] * d, with d = beta * (v - found).",
    "once": (
        "Load the column into float row[ROWS] first. found and the sum for q are of the same row[]; with d known, write"
        " decay * row[i] + k[i] * d, and the output follows from the two sums and k . q."
    ),
}
HARNESS = f"""
extern "C" __global__ void step(float* state, const float* k, const float* q, const float* v, float* out,
                                int stride, float decay, float beta) {{
    out[threadIdx.x] = one_pass(state + threadIdx.x, stride, k, q, v[threadIdx.x], decay, beta);
}}
static_assert(ROWS == {ROWS}, "of a column");
"""


def check_chunk(chunk_u: Callable[[Tensor, Tensor, Tensor], Any], seed: int | None = None) -> str:
    """Judge ``chunk_u(A, beta, V) -> U``, which solves (I + A) U = beta V.

    A: [n, n], 0 but below the diagonal; beta: [n]; V, U: [n, dv]. Chunks of 1 to 64 tokens. seed: of what is drawn.
    Raises AssertionError with a hint; returns a sentence of praise.
    """
    draw = torch.Generator().manual_seed(torch.seed() if seed is None else seed)
    for n, dv in ((1, 4), (2, 4), (3, 1), (8, 5), (64, 16)):
        size, sign = torch.rand(n, n, generator=draw) * 0.6 + 0.2, torch.randn(n, n, generator=draw).sign()
        a = (size * sign).tril(-1) / max(1.0, n / 8)  # nowhere so small that a mistake would not show
        beta, v = torch.rand(n, generator=draw) * 0.8 + 0.1, torch.randn(n, dv, generator=draw)
        given = chunk_u(a.clone(), beta.clone(), v.clone())
        _check_chunk(f"{n} tokens", given, a.double(), beta.double(), v.double())
    return "Right: every row was solved with the rows before it."


def _check_chunk(name: str, given: Any, a: Tensor, beta: Tensor, v: Tensor) -> None:
    assert isinstance(given, Tensor) and given.shape == v.shape, f"{name}: return a tensor {list(v.shape)}, as V is."
    rhs, one = beta[:, None] * v, torch.eye(len(a), dtype=torch.float64)
    u, mine = torch.linalg.solve(one + a, rhs), given.double()

    def is_near(other: Tensor) -> bool:
        return bool(torch.allclose(mine, other, rtol=1e-3, atol=1e-3))

    if is_near(u):
        return
    mistakes = {
        "beta": [torch.linalg.solve(one + a, v)],
        "sign": [torch.linalg.solve(one - a, rhs)],
        "solved": [rhs - a @ rhs, rhs - a @ v, rhs],
    }
    questions = {
        "beta": "Which rows count beta times?",
        "sign": "On which side of (I + A) U = beta V does A stand?",
        "solved": "Which rows does row i lean on: those of V, or those of U above it?",
    }
    for rule, wrong in mistakes.items():
        assert not any(map(is_near, wrong)), f"{name}: {staged(questions[rule], CHUNK_RULES[rule])}"
    near = (mine - u).norm(dim=1) < 1e-3  # False for NaN
    row = int((~near).int().argmax())
    raise AssertionError(f"{name}: row {row} is off. {staged(questions['solved'], CHUNK_RULES['solved'])}")


def check_one_pass(source: str, seed: int | None = None) -> str:
    """Judge CUDA text that defines ``__device__ float one_pass(float* s, int stride, const float* k, const float* q,
    float v, float decay, float beta)``: one column of a state of ROWS rows, element i at s[i * stride].

    It updates the column and returns its output, and loads and stores every element once. Gates are open, half open and
    shut. seed: of what is drawn. Raises AssertionError with a hint; returns praise.
    """
    draw = torch.Generator().manual_seed(torch.seed() if seed is None else seed)
    for name, decay, beta in (("a plain step", 0.7, 0.4), ("all forgotten", 0.0, 1.0), ("nothing written", 0.9, 0.0)):
        state, v = torch.randn(ROWS, COLUMNS, generator=draw), torch.randn(COLUMNS, generator=draw)
        k, q = torch.nn.functional.normalize(torch.randn(2, ROWS, generator=draw), dim=1)
        _check_step(source, name, state, k, q, v, decay, beta)
    return "Right: the state came in once, and went out once."


def _check_step(source: str, name: str, s: Tensor, k: Tensor, q: Tensor, v: Tensor, decay: float, beta: float) -> None:
    old, out = s.double(), torch.full((COLUMNS,), torch.nan)
    found, x = decay * (k.double() @ old), v.double()
    delta = beta * (x - found)
    new = decay * old + k.double()[:, None] * delta
    given = [s, k.contiguous(), q.contiguous(), v, out, COLUMNS, decay, beta]
    text = f"#define ROWS {ROWS}\n{source}{HARNESS}"
    result = simulate(text, "step", 1, COLUMNS, given, trace=True)
    assert result.ok, first_finding(result)
    if not _near(s, new):
        undecayed = beta * (x - k.double() @ old)
        without = any(_near(s, e * old + k.double()[:, None] * d) for e, d in ((decay, undecayed), (1.0, delta)))
        rule = "decay" if without else "state"
        question = "What does the key find: the state as it was, or decayed?" if without else "What is written?"
        raise AssertionError(f"{name}: the new state is off. {_hint(question, rule)}")
    output = q.double() @ new
    assert _near(out, output), f"{name}: the output is off. {_hint('Which state does q look at?', 'output')}"
    loads, stores = (times_moved(result.counters, kind, s)[0] for kind in ("load", "store"))
    assert loads <= 1 and stores <= 1, (
        f"{name}: right, but each element is loaded {loads:.3g} and stored {stores:.3g} times. "
        f"{_hint('Where could a column stay between the sums and the write?', 'once')}"
    )


def _near(given: Tensor, exact: Tensor) -> bool:
    return bool(torch.allclose(given.double(), exact, rtol=1e-3, atol=1e-4))


def _hint(question: str, rule: str) -> str:
    return staged(question, STEP_RULES[rule])
