"""sample(): reproducible draws, masks, penalties and log probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit import SamplingParams
from labkit.engine.sampler import SampledToken, SampleRequest, check_token_ids, draw_seed, log_softmax, sample, uniform
from labkit.errors import ConfigError, LabkitError, RequestError


def request(output: list[int] | None = None, seed: int = 0, **settings: object) -> SampleRequest:
    prompt = settings.pop("prompt", [])
    choice = settings.pop("choice", 0)
    end_ids = settings.pop("end_ids", ())
    return SampleRequest(SamplingParams(**settings), prompt, output or [], seed, choice, end_ids)


def one(logits: list[float] | torch.Tensor, wish: SampleRequest, num_valid: int | None = None) -> SampledToken:
    row = torch.as_tensor(logits, dtype=torch.float32)[None]
    (result,) = sample(row, [wish], num_valid=num_valid or row.shape[1])
    assert isinstance(result, SampledToken)
    return result


ROW_A = torch.randn(50, generator=torch.Generator().manual_seed(5)) * 2
ROW_B = torch.randn(50, generator=torch.Generator().manual_seed(6)) * 2


def tokens_of_a(setting: str, steps: int = 16) -> list[int]:
    """The steps of case sample-01: what A gets when B is this or that."""
    seed_of_b = 7 if setting == "B seeded" else draw_seed()
    top_p = 0.9 if setting == "top_p for B" else 1.0
    output: list[int] = []
    while len(output) < steps:
        if setting == "A is preempted" and len(output) == 5:
            output = [*output]  # recomputed: the sampler sees the same ids in a new list
        a = request(output, 1234, temperature=0.7)
        b = request(output[:2], seed_of_b, temperature=0.7, top_p=top_p)
        alone = setting == "A alone" or (setting == "B finishes" and len(output) >= 3)
        first = setting not in ("B before A", "B finishes")
        rows = [(ROW_A, a)] if alone else [(ROW_A, a), (ROW_B, b)] if first else [(ROW_B, b), (ROW_A, a)]
        results = sample(torch.stack([row for row, _ in rows]), [wish for _, wish in rows], num_valid=50)
        output.append(next(r.token for r, (_, wish) in zip(results, rows, strict=True) if wish is a))
    return output


@pytest.mark.parametrize(
    "setting",
    ["B unseeded", "B seeded", "B before A", "B finishes", "A is preempted", "top_p for B"],
)
def test_seeded_request_does_not_depend_on_its_neighbours(setting: str) -> None:
    # Case sample-01.
    assert tokens_of_a(setting) == tokens_of_a("A alone")


@given(st.integers(0, 2**32), st.integers(2, 5), st.data())
def test_rows_are_bitwise_independent(seed: int, count: int, data: st.DataObject) -> None:
    rows = torch.randn(count, 33, generator=torch.Generator().manual_seed(seed)) * 3
    wishes = [
        request(
            data.draw(st.lists(st.integers(0, 32), max_size=4)),
            seed + r,
            temperature=data.draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
            top_p=data.draw(st.sampled_from([0.5, 1.0])),
            top_k=data.draw(st.integers(0, 40)),
            logprobs=data.draw(st.sampled_from([None, 0, 3])),
            presence_penalty=data.draw(st.sampled_from([0.0, 1.0])),
        )
        for r in range(count)
    ]
    together = sample(rows, wishes, num_valid=30)
    assert together == [sample(rows[r : r + 1], [wishes[r]], num_valid=30)[0] for r in range(count)]


def draws(choice: int, seed: int, steps: int = 16) -> list[int]:
    output: list[int] = []
    for _ in range(steps):
        output.append(one(ROW_A, request(output, seed, temperature=0.7, choice=choice)).token)
    return output


def test_choices_of_one_seed_differ_and_repeat() -> None:
    first, second = draws(0, 1234), draws(1, 1234)
    assert first != second
    assert (first, second) == (draws(0, 1234), draws(1, 1234))


def test_unseeded_requests_differ() -> None:
    assert len({tuple(draws(0, draw_seed())) for _ in range(4)}) == 4


def test_seeds_of_either_sign_and_of_64_bits_differ() -> None:
    seeds = [-(2**63), -1, 0, 1, 2**63 - 1, 2**63 + 1, 2**64 - 2]
    assert len({uniform(seed, 0, 0) for seed in seeds}) == len(seeds)


def test_uniform_is_frozen() -> None:
    # A change of these numbers would change the answers of every seeded request.
    assert [uniform(1234, 0, 0), uniform(1234, 0, 1), uniform(1234, 1, 0)] == pytest.approx(
        [0.3347236812982095, 0.5920534818812643, 0.17756174472866693], abs=1e-12
    )


def test_uniform_is_uniform_over_positions_and_over_seeds() -> None:
    for numbers in ([uniform(3, 0, i) for i in range(4000)], [uniform(i, 0, 3) for i in range(4000)]):
        counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
        assert ((counts - 200) ** 2 / 200).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.2}])
def test_draws_follow_the_distribution(settings: dict[str, float]) -> None:
    logits = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05]))
    settings = {"temperature": 1.0} | settings
    want = np.exp(logits / settings["temperature"])
    want[[r for r in range(5) if r >= {"top_k": 3, "top_p": 3, "min_p": 4}.get(list(settings)[-1], 5)]] = 0
    want /= want.sum()
    got = np.zeros(5)
    for i in range(3000):
        got[one(torch.tensor(logits), request(seed=i, **settings)).token] += 1
    kept = want > 0
    assert got[~kept].sum() == 0
    chi_square = ((got[kept] - 3000 * want[kept]) ** 2 / (3000 * want[kept])).sum()
    assert chi_square < 18.5  # 4 degrees of freedom, p = 0.001


def test_greedy_takes_the_argmax_and_the_lower_id_of_a_tie() -> None:
    assert one([1.0, 3.0, 3.0, 2.0], request(temperature=0.0)).token == 1
    assert one([1.0, 3.0, 3.0, 2.0], request(temperature=0.0, logprobs=0)).token == 1


@given(st.integers(0, 2**32), st.sampled_from([0.0, 1e-300, 5e-324, 1e-6]))
def test_tiny_temperatures_are_greedy(seed: int, temperature: float) -> None:
    row = torch.randn(40, generator=torch.Generator().manual_seed(seed)) * 100
    assert one(row, request(seed=seed, temperature=temperature)).token == int(row.argmax())


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 5.0}, {"temperature": 0.0, "logprobs": 5}])
def test_rows_of_the_head_beyond_the_tokenizer_never_win(settings: dict[str, float]) -> None:
    row = torch.full((248_320,), 0.0)
    row[248_077:] = 100.0
    row[11] = 90.0
    result = one(row, request(**settings), num_valid=248_077)
    assert result.token == 11
    assert all(token < 248_077 for token, _ in result.top)


def test_padding_rows_may_hold_anything() -> None:
    assert one([0.0, 1.0, float("nan")], request(temperature=0.0), num_valid=2).token == 1


END_A, END_B, X = 5, 6, 7


def ended_after(end_ids: tuple[int, ...], min_tokens: int, **settings: object) -> list[int]:
    row = torch.zeros(10)
    row[END_A], row[END_B], row[X] = 9.0, 8.0, 1.0
    output: list[int] = []
    while not output or output[-1] not in (END_A, END_B):
        wish = request(output, min_tokens=min_tokens, end_ids=end_ids, temperature=0.0, **settings)
        output.append(one(row, wish).token)
    return output


@pytest.mark.parametrize("min_tokens", [0, 1, 3])
def test_min_tokens_come_before_any_end_token(min_tokens: int) -> None:
    # Case sample-02 a: both end tokens are masked, and not one token longer than asked.
    assert ended_after((END_A, END_B), min_tokens) == [X] * min_tokens + [END_A]


def test_min_tokens_outweighs_the_strongest_bias() -> None:
    assert ended_after((END_A, END_B), 2, logit_bias={END_B: 100.0}) == [X, X, END_B]


def test_end_ids_beyond_the_vocabulary_do_no_harm() -> None:
    assert one([1.0, 0.0], request(temperature=0.0, min_tokens=1, end_ids=(0, 99))).token == 1


def test_masking_everything_is_a_typed_error() -> None:
    (result,) = sample(torch.zeros(1, 2), [request(min_tokens=1, end_ids=(0, 1))], num_valid=2)
    assert isinstance(result, RequestError) and "min_tokens" in result.message


def test_logit_bias_forces_and_bans() -> None:
    row = torch.log(torch.tensor([0.6, 0.35, 0.05]))
    assert {one(row, request(seed=s, logit_bias={2: 100})).token for s in range(20)} == {2}
    banned = [one(row, request(seed=s, logit_bias={1: -100})).token for s in range(1300)]
    assert 1 not in banned
    assert banned.count(0) == pytest.approx(1200, abs=4 * math.sqrt(1300 * 12 / 13 / 13))
    assert one(row, request(temperature=0.0, logit_bias={2: 3.0})).token == 2  # counts for greedy requests too


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 1.0}])
def test_non_finite_logits_fail_their_own_row_only(value: float, settings: dict[str, float]) -> None:
    rows = torch.zeros(3, 8)
    rows[:, 2] = 50.0
    rows[1, 4] = value
    before, bad, after = sample(rows, [request(**settings)] * 3, num_valid=8)
    assert isinstance(bad, LabkitError) and "non-finite" in bad.message and bad.cure
    assert before == after == SampledToken(2)


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 3.0, "top_k": 1, "logit_bias": {3: 100}}])
def test_logprobs_are_those_of_the_model(settings: dict[str, object]) -> None:
    row = torch.randn(20, generator=torch.Generator().manual_seed(9))
    want = row[:15].double() - row[:15].double().logsumexp(0)
    result = one(row, request(logprobs=4, **settings), num_valid=15)
    assert result.logprob == pytest.approx(float(want[result.token]), abs=1e-12)
    order = sorted(range(15), key=lambda i: (-float(want[i]), i))[:4]
    assert [token for token, _ in result.top] == order
    assert [score for _, score in result.top] == pytest.approx([float(want[i]) for i in order], abs=1e-12)


def test_logprobs_zero_reports_the_chosen_token_only() -> None:
    result = one([0.0, math.log(3.0)], request(temperature=0.0, logprobs=0))
    assert (result.token, result.top) == (1, ())
    assert result.logprob == pytest.approx(math.log(0.75))


def test_more_logprobs_than_tokens_and_ties_in_id_order() -> None:
    assert [token for token, _ in one([1.0, 2.0, 1.0, 1.0], request(logprobs=20)).top] == [1, 0, 2, 3]
    assert [token for token, _ in one([1.0, 2.0, 1.0, 1.0], request(logprobs=2)).top] == [1, 0]


def test_log_softmax_is_stable() -> None:
    assert log_softmax(np.array([1e4, 1e4])) == pytest.approx([-math.log(2)] * 2)


@pytest.mark.parametrize("name, value", [("logit_bias", {3: 1.0, 50: 1.0}), ("stop_token_ids", [2, 50])])
def test_ids_outside_the_vocabulary_are_refused_at_admission(name: str, value: object) -> None:
    params = SamplingParams(**{name: value})
    check_token_ids(params, 51)
    with pytest.raises(ConfigError, match=f"{name} names token 50") as caught:
        check_token_ids(params, 50)
    assert "0 to 49" in caught.value.cure
