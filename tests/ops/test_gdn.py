"""Gated DeltaNet: the chunked form, the batched step and the convolution against a plain fp64 recurrence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from labkit.ops import gdn
from labkit.ops.rmsnorm import l2norm


def random_inputs(tokens: int, heads: int, dk: int, dv: int) -> tuple[Tensor, ...]:
    q, k = (l2norm(torch.randn(tokens, heads, dk)) for _ in range(2))
    g = -torch.rand(tokens, heads) * torch.tensor([0.01, 0.5, 30.0]).repeat(heads)[:heads]
    return q * dk**-0.5, k, torch.randn(tokens, heads, dv), g, torch.rand(tokens, heads)


def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, one token and head at a time, in fp64."""
    outputs = torch.empty(v.shape, dtype=torch.float64)
    state = state.double().clone()
    for t in range(q.shape[0]):
        for h in range(q.shape[1]):
            s = state[h] * g[t, h].double().exp()
            delta = beta[t, h].double() * (v[t, h].double() - s.T @ k[t, h].double())
            state[h] = s + torch.outer(k[t, h].double(), delta)
            outputs[t, h] = state[h].T @ q[t, h].double()
    return outputs, state


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 150])
@pytest.mark.parametrize("start", [0, 1, 63, 64, 100])
def test_chunked_form_equals_the_recurrence_wherever_it_starts(tokens: int, start: int, seed: int) -> None:
    inputs, state = random_inputs(tokens, 3, 16, 24), torch.randn(3, 16, 24)
    expected, expected_state = recurrence(*inputs, state)
    out, new_state = gdn.gdn_prefill(*inputs, state, start)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(new_state.double(), expected_state, rtol=1e-4, atol=2e-5)


def test_chunks_lie_on_absolute_multiples_of_64(seed: int) -> None:
    """Cut at a multiple of 64, a run gives the very same bits as in one piece: its chunks are the same."""
    inputs, state = random_inputs(150, 3, 16, 24), torch.randn(3, 16, 24)
    whole, end = gdn.gdn_prefill(*inputs, state, 30)
    first, middle = gdn.gdn_prefill(*(x[:34] for x in inputs), state, 30)
    second, cut_end = gdn.gdn_prefill(*(x[34:] for x in inputs), middle, 64)
    assert torch.equal(torch.cat((first, second)), whole) and torch.equal(cut_end, end)


def test_step_equals_the_recurrence_for_each_sequence_of_a_batch(seed: int) -> None:
    q, k, v, g, beta = random_inputs(5, 3, 16, 24)
    states = torch.randn(5, 3, 16, 24)
    out, new_states = gdn.gdn_decode(q, k, v, g, beta, states)
    for b in range(5):
        one = (x[b : b + 1] for x in (q, k, v, g, beta))
        expected, state = recurrence(*one, states[b])
        torch.testing.assert_close(out[b : b + 1].double(), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(new_states[b].double(), state, rtol=1e-5, atol=1e-6)


def test_convolution_cut_anywhere_equals_the_whole(seed: int) -> None:
    u, weight = torch.randn(40, 12), torch.randn(12, 4)
    padded = torch.cat((torch.zeros(3, 12), u)).double()
    expected = torch.stack([(padded[t : t + 4] * weight.double().T).sum(0) for t in range(40)])
    expected = expected * expected.sigmoid()
    history, parts = torch.zeros(3, 12), []
    for length in (1, 2, 5, 32):
        first = sum(len(p) for p in parts)
        out, history = gdn.causal_conv(u[first : first + length], history, weight)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts).double(), expected, rtol=1e-5, atol=1e-6)
    step, kept = gdn.causal_conv_step(u[39:40], u[None, 36:39], weight)
    torch.testing.assert_close(step.double(), expected[39:40], rtol=1e-5, atol=1e-6)
    assert torch.equal(kept[0], u[37:40])


def test_decay_beyond_the_fp16_range_gives_zero_not_nan() -> None:
    """A_log = 12: exp(12) = 162754.8 is no half-precision number, and the decay it makes is 0."""
    g, _ = gdn.gates(torch.tensor([[0.5]]), torch.zeros(1, 1), torch.tensor([12.0]), torch.tensor([0.5]))
    assert g.dtype == torch.float32 and g.item() == pytest.approx(-162754.8 * 1.3132617, rel=1e-5)
    assert g.exp().item() == 0.0
    q, k, v = torch.ones(3, 1, 4), torch.ones(3, 1, 4), torch.ones(3, 1, 4)
    out, state = gdn.gdn_prefill(q, k, v, g.expand(3, 1), torch.ones(3, 1), torch.ones(1, 4, 4), 0)
    assert out.isfinite().all() and state.isfinite().all()
