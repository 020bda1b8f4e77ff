"""shape_logits and weights against hand-computed values and plain re-implementations."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import SamplingParams
from labkit.engine.logit_shaping import heaviest, shape_logits, weights

LOGITS = st.lists(st.integers(-12, 12).map(lambda n: n / 2) | st.floats(-30, 30, width=32), min_size=2, max_size=40)


def shaped(row: list[float], prompt: list[int], output: list[int], **settings: Any) -> np.ndarray:
    return shape_logits(np.array(row), SamplingParams(**settings), prompt, output, ())


def test_penalties_by_hand() -> None:
    row, prompt, output = [2.0, -2.0, 1.0, 1.0, 0.5], [0, 1, 1], [2, 2, 1]
    assert shaped(row, prompt, output, presence_penalty=0.5) == pytest.approx([2.0, -2.5, 0.5, 1.0, 0.5])
    assert shaped(row, prompt, output, frequency_penalty=0.25) == pytest.approx([2.0, -2.25, 0.5, 1.0, 0.5])
    assert shaped(row, prompt, output, repetition_penalty=2.0) == pytest.approx([1.0, -4.0, 0.5, 1.0, 0.5])


def test_all_of_them_in_order_by_hand() -> None:
    # Bias first, then repetition, then presence and frequency: (1 + 1) / 2 - 0.5 - 2 * 0.25 = 0.
    got = shaped(
        [1.0, 0.0], [], [0, 0], logit_bias={0: 1}, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25
    )
    assert got == pytest.approx([0.0, 0.0])


@given(
    LOGITS,
    st.lists(st.integers(0, 50)),
    st.lists(st.integers(0, 50)),
    st.floats(0.1, 5),
    st.floats(-2, 2),
    st.floats(-2, 2),
)
def test_penalties_agree_with_a_loop(
    row: list[float], prompt: list[int], output: list[int], repetition: float, presence: float, frequency: float
) -> None:
    want, counts = list(row), Counter(output)
    for token in range(len(row)):
        if token in prompt or token in output:
            want[token] = want[token] / repetition if want[token] > 0 else want[token] * repetition
        if counts[token]:
            want[token] -= presence + counts[token] * frequency
    settings = {"repetition_penalty": repetition, "presence_penalty": presence, "frequency_penalty": frequency}
    assert shaped(row, prompt, output, **settings) == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("penalty", [5e-324, 1e300])
def test_extreme_repetition_penalties_stay_finite(penalty: float) -> None:
    row = shaped([3.0, -3.0, 0.0], [0, 1, 2], [], repetition_penalty=penalty)
    assert np.isfinite(row).all()
    assert np.isfinite(weights(row, SamplingParams(temperature=1e-300))).all()


def test_the_raw_logits_stay_untouched() -> None:
    raw = np.array([1.0, 2.0])
    shape_logits(raw, SamplingParams(logit_bias={0: 5}, min_tokens=1), [], [], (1,))
    assert raw.tolist() == [1.0, 2.0]


def reference_support(row: list[float], temperature: float, k: int, p: float, min_p: float) -> list[set[int]]:
    """Supports by definition, one for each way in which rounding may decide the border of top_p and min_p."""
    probabilities = np.exp((np.array(row) - max(row)) / temperature)
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))[: k or len(row)]
    supports = []
    for slack in (-1e-9, 1e-9):
        total = math.fsum(probabilities[order])
        kept, mass = [], 0.0
        for token in order:
            if p < 1 and mass >= p + slack:
                break
            kept.append(token)
            mass += probabilities[token] / total
        supports += [{t for t in kept if probabilities[t] >= min_p + s and probabilities[t] > 0} for s in (-1e-9, 1e-9)]
    return supports


@given(
    LOGITS,
    st.floats(0.1, 3),
    st.integers(0, 45),
    st.sampled_from([1.0]) | st.floats(0.01, 0.999),
    st.sampled_from([0.0]) | st.floats(0.01, 0.999),
)
def test_support_and_weights_by_definition(
    row: list[float], temperature: float, k: int, p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=k, top_p=p, min_p=min_p)
    mass = weights(np.array(row), params)
    kept = set(np.flatnonzero(mass).tolist())
    assert kept in reference_support(row, temperature, k, p, min_p)
    assert int(np.argmax(row)) in kept
    for token in kept:
        assert mass[token] == pytest.approx(math.exp((row[token] - max(row)) / temperature))


def test_ties_go_to_the_lower_ids() -> None:
    flat = np.zeros(10)
    assert np.flatnonzero(weights(flat, SamplingParams(top_k=3))).tolist() == [0, 1, 2]
    assert np.flatnonzero(weights(flat, SamplingParams(top_p=0.35))).tolist() == [0, 1, 2, 3]
    assert np.flatnonzero(weights(flat, SamplingParams(min_p=1.0))).tolist() == list(range(10))


def test_top_p_reaches_its_mass_with_the_fewest_tokens() -> None:
    row = np.log(np.array([0.05, 0.5, 0.15, 0.3]))
    assert np.flatnonzero(weights(row, SamplingParams(top_p=0.49))).tolist() == [1]
    assert np.flatnonzero(weights(row, SamplingParams(top_p=0.51))).tolist() == [1, 3]
    assert np.flatnonzero(weights(row, SamplingParams(top_p=0.96))).tolist() == [0, 1, 2, 3]


def test_top_p_is_measured_after_top_k() -> None:
    row = np.log(np.array([0.4, 0.3, 0.3]))  # of the two best, the first has 4/7 = 0.571
    assert np.flatnonzero(weights(row, SamplingParams(top_k=2, top_p=0.56))).tolist() == [0]
    assert np.flatnonzero(weights(row, SamplingParams(top_p=0.56))).tolist() == [0, 1]


def test_min_p_is_a_share_of_the_best() -> None:
    row = np.log(np.array([0.6, 0.35, 0.05]))  # the threshold is 0.36
    assert np.flatnonzero(weights(row, SamplingParams(min_p=0.6))).tolist() == [0]
    assert np.flatnonzero(weights(row, SamplingParams(min_p=0.58))).tolist() == [0, 1]


def test_a_vocabulary_of_full_size_keeps_what_a_full_sort_keeps() -> None:
    row = np.random.default_rng(3).normal(size=248_077) * 2
    share = np.exp(row) / np.exp(row).sum()
    order = np.argsort(-share, kind="stable")
    want = order[np.concatenate([[0.0], share[order].cumsum()[:-1]]) < 0.9]
    assert np.flatnonzero(weights(row, SamplingParams(top_p=0.9))).tolist() == sorted(want.tolist())


@given(st.lists(st.integers(0, 6).map(float), min_size=1, max_size=30), st.data())
def test_heaviest_takes_the_largest_and_the_lower_ids(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    want = sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]
    assert sorted(heaviest(np.array(values), k).tolist()) == sorted(want)
