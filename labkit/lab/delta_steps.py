"""The gated delta rule on one small head, token by token: what a key finds, what is written, what the state becomes."""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.lab.flipbook import Flipbook, picture_book
from labkit.lab.matrix_row import matrix_row
from labkit.lab.picture import SvgPicture
from labkit.ops import gdn


def delta_steps(k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Flipbook:
    """A page for each token, beginning with an empty state; the last one shows first.

    k: fp32 [T, dk]; v: fp32 [T, dv]; g, beta: fp32 [T]. Raises ValueError for other shapes.
    """
    if k.dim() != 2 or v.dim() != 2 or not len(k) == len(v) == len(g) == len(beta):
        raise ValueError(f"keys {list(k.shape)}, values {list(v.shape)}, {len(g)} decays and {len(beta)} strengths")
    state, pages = torch.zeros(k.shape[1], v.shape[1]), {}
    for t in range(len(k)):
        pages[str(t + 1)], state = _page(t + 1, k[t], v[t], g[t], beta[t], state)
    return picture_book(pages, "token")


def _page(number: int, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[SvgPicture, Tensor]:
    """The picture of one step, and the state after it, which is the engine's own."""
    decayed = g.exp() * state
    found = k @ decayed
    delta = beta * (v - found)
    one = (x[None, None] for x in (k, k, v, g, beta, state))
    _, after = gdn.gdn_decode(*one)
    states = {"S before": state, "e^g S": decayed, "S after = e^g S + k d^T": after[0, 0]}
    found_by = {"k": k, "v": v, "found: (e^g S)^T k": found, "d = beta (v - found)": delta}
    title = f"token {number}: e^g = {float(g.exp()):.2f}, beta = {float(beta):.2f}"
    return matrix_row(title, states, {name: x[None] for name, x in found_by.items()}), after[0, 0]
