"""What a request's settings do to a row of logits, in the order in which they are applied.

logit_bias, penalties, min_tokens mask | temperature, top_k, top_p, min_p. The first three can move the
argmax and so count for greedy requests too; the rest only reshapes the distribution that is drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from labkit.engine.sampling_params import SamplingParams

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_LARGEST = 1e30  # extreme penalties are held at this size, so that no infinity takes part in the softmax


def shape_logits(
    raw: FloatArray,
    params: SamplingParams,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    end_ids: Sequence[int],
) -> FloatArray:
    """Bias, penalties and the min_tokens mask. float64 [V] -> a new float64 [V], masked ids at -inf.

    Penalties follow the OpenAI API (presence, frequency: over the output) and CTRL (Keskar et al. 2019;
    repetition: over prompt and output).
    """
    row = raw.copy()
    for token, amount in params.logit_bias.items():
        row[token] += amount
    _penalise_repetition(row, params.repetition_penalty, prompt_ids, output_ids)
    _penalise_output(row, params, output_ids)
    np.clip(row, -_LARGEST, _LARGEST, out=row)
    if len(output_ids) < params.min_tokens:
        row[[token for token in end_ids if 0 <= token < len(row)]] = -np.inf  # a config may name any number
    return row


def weights(shaped: FloatArray, params: SamplingParams) -> FloatArray:
    """Unnormalised probabilities after temperature, top_k, top_p and min_p: the best is 1, the cut are 0.

    shaped: float64 [V] with a finite maximum; params.temperature > 0. Returns float64 [V].
    """
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
        mass = np.exp((shaped - shaped.max()) / params.temperature)
    # Ranked by logit, not by weight: the exponential makes equals of what differs in the last bits.
    _cut(mass, _top_k(shaped, params.top_k))
    _cut(mass, _top_p(mass, shaped, params.top_p))
    mass[mass < params.min_p] = 0.0
    return mass


def heaviest(values: FloatArray, k: int) -> IntArray:
    """The ids of the k largest values (0 < k <= V), in no order; of equals at the border, the lower ids."""
    border = np.partition(values, -k)[-k]
    above, equal = np.flatnonzero(values > border), np.flatnonzero(values == border)
    return np.concatenate([above, equal[: k - len(above)]])


def _known(ids: Sequence[int], size: int) -> IntArray:
    """The ids that are columns of the row. Prompts may hold ids that only the embedding knows."""
    array = np.asarray(ids, dtype=np.int64)
    return array[(array >= 0) & (array < size)]


def _penalise_repetition(row: FloatArray, penalty: float, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
    if penalty == 1.0:
        return
    seen = np.unique(np.concatenate([_known(prompt_ids, len(row)), _known(output_ids, len(row))]))
    scores = row[seen]
    with np.errstate(over="ignore"):
        row[seen] = np.where(scores > 0, scores / penalty, scores * penalty)


def _penalise_output(row: FloatArray, params: SamplingParams, output_ids: Sequence[int]) -> None:
    if params.presence_penalty == 0.0 and params.frequency_penalty == 0.0:
        return
    seen, counts = np.unique(_known(output_ids, len(row)), return_counts=True)
    row[seen] -= params.presence_penalty + params.frequency_penalty * counts


def _cut(mass: FloatArray, keep: IntArray | None) -> None:
    """Set all but the kept ids to 0; None keeps everything."""
    if keep is not None:
        kept = mass[keep]
        mass[:] = 0.0
        mass[keep] = kept


def _top_k(shaped: FloatArray, k: int) -> IntArray | None:
    return None if k == 0 or k >= len(shaped) else heaviest(shaped, k)


def _top_p(mass: FloatArray, shaped: FloatArray, p: float) -> IntArray | None:
    """The fewest ids, heaviest first (of equals the lower id), whose share of the mass reaches p."""
    if p == 1.0:
        return None
    share = mass / mass.sum()
    # All ids below (1-p)/V together weigh less than 1-p, so none is needed: this spares sorting them.
    candidates = np.flatnonzero(share >= (1.0 - p) / len(share))
    order = candidates[np.argsort(-shaped[candidates], kind="stable")]
    before = np.concatenate([[0.0], share[order].cumsum()[:-1]])
    return order[before < p]
