"""The rule of *same tokens*: equal, or a first difference where both logits are as close to the best as rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from labkit import LLM

# Of logits, relative to a row's largest, by KV dtype: fp16 against fp32 in torch, eight `gentle` models of each kind.
# Where keys are coarse, a rounding in half precision can move one to the next code, and that costs a step of its scale.
TOLERANCES = {"auto": 8e-3, "fp16": 8e-3, "int8": 1.5e-2, "k8v4": 5e-2, "int4": 8e-2}


def gentle(model: Any) -> Any:
    """``model`` with the matrices of its layers halved: as drawn, their sharp attention magnifies every rounding.

    Entries that halves would lose become 0 in all matrices. In some draws there is one, and a small matrix with one is
    kept in fp32: it would depend on the draw which kernels run.
    """
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            weight.mul_(0.5 if "layers." in name else 1.0)
            weight.masked_fill_(weight.half() == 0, 0)
    return model


def assert_same_tokens(
    judge: LLM, prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int], kv: str = "auto"
) -> None:
    """Both answers to ``prompt`` are greedy, with KV pages of dtype ``kv``; ``judge`` has the logits where they part.

    There both tokens must tie with the best.
    """
    assert len(ours) == len(theirs)
    place = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), None)
    if place is None:
        return
    row = judge.logits([*prompt, *theirs[:place]])[-1]
    behind = float(row.max() - torch.minimum(row[ours[place]], row[theirs[place]]))
    allowed = 2 * TOLERANCES[kv] * float(row.abs().max())
    print(f"token {place} differs: a logit {behind:.2e} behind the best, {allowed:.2e} is a tie")
    assert behind <= allowed
