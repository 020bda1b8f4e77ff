"""From logits to tokens: one token per row, reproducible whatever stands in the other rows.

Rows without any wish (greedy, unshaped) share one argmax on the logits' device, and of the logits themselves nothing
leaves it; without such a row it is not taken. Every other row is shaped and drawn on its own, in float64 on the host,
so that no neighbour can change a bit of it; from a GPU they come over in one copy.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labkit.engine.logit_shaping import FloatArray, heaviest, shape_logits, weights
from labkit.engine.sampling_params import SamplingParams
from labkit.errors import ConfigError, LabkitError, RequestError

_UINT64 = 2**64 - 1


@dataclass(frozen=True)
class SampleRequest:
    """What the sampler must know of the sequence that a row of logits belongs to.

    prompt_ids, output_ids: the tokens so far. len(output_ids) is the position of the token to draw.
    seed, choice: the request's seed (see draw_seed) and which of its n answers this is.
    end_ids: every token that ends the answer; none of them comes before params.min_tokens others.
    """

    params: SamplingParams
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    seed: int
    choice: int = 0
    end_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class SampledToken:
    """The token, and if params.logprobs is set its log probability and the best alternatives.

    Log probabilities are those of the model itself: before bias, penalties, temperature and
    truncation, over the ids that the tokenizer knows.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def draw_seed() -> int:
    """A fresh seed in [0, 2**63) for a request that came without one."""
    return secrets.randbits(63)


def check_token_ids(params: SamplingParams, num_valid: int) -> None:
    """Refuse token ids that the model cannot produce. Raises ConfigError."""
    for name in ("logit_bias", "stop_token_ids"):
        unknown = [token for token in getattr(params, name) if token >= num_valid]
        if unknown:
            raise ConfigError(
                f"{name} names token {unknown[0]}, which the vocabulary does not have.",
                cure=f"Use ids from 0 to {num_valid - 1}.",
            )


def sample(logits: Tensor, requests: Sequence[SampleRequest], *, num_valid: int) -> list[SampledToken | LabkitError]:
    """Choose the next token of every row.

    logits: float32 [R, V], on any device; requests: R of them, in the order of the rows.
    num_valid: how many ids the tokenizer knows. Columns from there on (padding of the head) never win.
    Returns R results. A row with a NaN or an infinity gives a RequestError; the others are unharmed.
    """
    rows = logits[:, :num_valid]
    plain = [_is_plain(request) for request in requests]
    best = _best_of_finite_rows(rows, any(plain))
    host = rows if all(plain) else rows.detach().cpu()
    return [
        _sample_row(host[r], request, best[r]) if best[r] >= 0 else _non_finite(request)
        for r, request in enumerate(requests)
    ]


def uniform(seed: int, choice: int, position: int) -> float:
    """The random number in [0, 1) of one place: a pure function of its three arguments.

    Philox-4x64-10 (Salmon et al., SC 2011) keyed by seed and choice, with the position as counter:
    batches, rows, preemption and recomputation cannot move the stream.
    """
    key = np.array([seed & _UINT64, choice], dtype=np.uint64)
    counter = np.array([position, 0, 0, 0], dtype=np.uint64)
    return (int(np.random.Philox(key=key, counter=counter).random_raw()) >> 11) * 2.0**-53


def log_softmax(row: FloatArray) -> FloatArray:
    """log(softmax(row)), stable. float64 [V] -> float64 [V]."""
    shifted = row - row.max()
    return shifted - np.log(np.exp(shifted).sum())


def _is_plain(request: SampleRequest) -> bool:
    """True if the token is simply the argmax of the model's logits."""
    params = request.params
    shaped = params.logit_bias or params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1
    masked = len(request.output_ids) < params.min_tokens
    return params.greedy and params.logprobs is None and not shaped and not masked


def _best_of_finite_rows(rows: Tensor, wanted: bool) -> list[int]:
    """The place of each row's largest entry, 0 unless wanted; -1 for a row that is not finite. Waits for a GPU once."""
    # Minimum and maximum come in one pass and carry any NaN or infinity with them.
    low, high = torch.aminmax(rows, dim=-1)
    finite = low.isfinite() & high.isfinite()
    return torch.where(finite, rows.argmax(dim=-1) if wanted else 0, -1).tolist()


def _non_finite(request: SampleRequest) -> RequestError:
    return RequestError(
        f"The model produced non-finite logits (NaN or infinity) for output token {len(request.output_ids) + 1}.",
        cure="Load the model with dtype float32; if that does not help, its weights are damaged.",
    )


def _sample_row(row: Tensor, request: SampleRequest, best: int) -> SampledToken | LabkitError:
    if _is_plain(request):
        return SampledToken(best)
    raw = row.numpy().astype(np.float64)
    shaped = shape_logits(raw, request.params, request.prompt_ids, request.output_ids, request.end_ids)
    if shaped.max() == -np.inf:
        return RequestError("min_tokens forbids every token of the vocabulary.", cure="Name fewer stop_token_ids.")
    token = _choose(shaped, request)
    return SampledToken(token, *_report(raw, token, request.params.logprobs))


def _choose(shaped: FloatArray, request: SampleRequest) -> int:
    if request.params.greedy:
        return int(shaped.argmax())
    place = uniform(request.seed, request.choice, len(request.output_ids))
    return _invert_cdf(weights(shaped, request.params), place)


def _invert_cdf(mass: FloatArray, place: float) -> int:
    """The first id, in id order, up to which more than `place` of the mass lies. It has mass itself."""
    cumulative = mass.cumsum()
    total = cumulative[-1]
    target = min(place * total, np.nextafter(total, 0.0))  # place * total may round up to the total
    return int(np.searchsorted(cumulative, target, side="right"))


def _report(raw: FloatArray, token: int, count: int | None) -> tuple[float | None, tuple[tuple[int, float], ...]]:
    if count is None:
        return None, ()
    scores = log_softmax(raw)
    best = np.sort(heaviest(scores, min(count, len(scores)))) if count else np.empty(0, dtype=np.int64)
    order = best[np.argsort(-scores[best], kind="stable")]  # equals stand in id order
    return float(scores[token]), tuple((int(i), float(scores[i])) for i in order)
