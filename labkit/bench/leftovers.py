"""What ``--quantize-leftovers`` costs: the packed model beside the same one unpacked, on the same text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from labkit.bench.perplexity import PerplexityResult, Progress, compare, perplexity
from labkit.engine.llm import LLM


@dataclass(frozen=True)
class LeftoverCost:
    """Measured on the scored tokens of one text, all other settings equal.

    unpacked_perplexity: with quantize_leftovers "none". added_perplexity: packed minus unpacked; added_percent: that as
    a share of the unpacked. agreement_with_unpacked: share of positions with the same best token, 0 to 1.
    mean_kl_to_unpacked: KL(unpacked || packed) per position, in nats. notes: what loading the packed model reported.
    """

    unpacked_perplexity: float
    added_perplexity: float
    added_percent: float
    agreement_with_unpacked: float
    mean_kl_to_unpacked: float
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def leftover_cost(
    packed: LLM,
    unpacked: LLM,
    scored: PerplexityResult,
    text: str,
    *,
    max_tokens: int | None = None,
    progress: Progress | None = None,
) -> LeftoverCost:
    """Score ``text`` with the unpacked model, and compare the two.

    scored: what ``perplexity`` gave for the packed one; its window and stride are used again, and max_tokens must be
    the same. Raises as ``perplexity`` and ``compare`` do.
    """
    limits: dict[str, Any] = {"window": scored.window, "stride": scored.stride, "max_tokens": max_tokens}
    plain = perplexity(unpacked, text, **limits, progress=progress)
    compared = compare(packed, unpacked, text, **limits, progress=progress)
    added = scored.perplexity - plain.perplexity
    return LeftoverCost(
        unpacked_perplexity=plain.perplexity,
        added_perplexity=added,
        added_percent=100 * added / plain.perplexity,
        agreement_with_unpacked=compared.argmax_agreement,
        mean_kl_to_unpacked=compared.mean_kl,
        notes=tuple(packed.engine.checkpoint.report.notes),
    )
