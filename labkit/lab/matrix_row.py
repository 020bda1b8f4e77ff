"""Small matrices side by side, with their numbers: how one comes of the others is the reader's to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from labkit.lab.drawing import EMPTY, USED, WARNING, box, document, words
from labkit.lab.picture import SvgPicture

CELL, HEIGHT, GAP, LABEL, TOP, MARGIN, WIDEST = 36, 20, 26, 20, 30, 8, 800  # pixels; WIDEST: of a line of matrices
MOST_CELLS = 400  # of all matrices: more would be no picture to read
LEGEND = "positive blue, negative orange, darker the larger; exact zeros are blank"


@dataclass(frozen=True)
class _Placed:
    """A matrix and its upper left corner."""

    name: str
    matrix: Tensor
    x: float
    y: float

    @property
    def width(self) -> float:
        return max(CELL * self.matrix.shape[1], 7.0 * len(self.name))

    @property
    def height(self) -> float:
        return LABEL + HEIGHT * self.matrix.shape[0]


def matrix_row(title: str, *lines: Mapping[str, Tensor]) -> SvgPicture:
    """Draw lines of matrices by name, [rows, columns] each; a number stands in every cell that is not 0.

    Names differ. Raises ValueError for what is no matrix, for none, and for more than 400 cells.
    """
    matrices = {name: matrix for line in lines for name, matrix in line.items()}
    if not matrices or any(x.dim() != 2 or not x.numel() for x in matrices.values()):
        raise ValueError("give matrices of [rows, columns]")
    if sum(x.numel() for x in matrices.values()) > MOST_CELLS:
        raise ValueError(f"more than {MOST_CELLS} cells cannot be read")
    shapes = ", ".join(f"{name} [{x.shape[0]} x {x.shape[1]}]" for name, x in matrices.items())
    text = "\n".join([title, *(line for name, x in matrices.items() for line in _lines(name, x))])
    return SvgPicture(_svg(_placed(lines), title), f"{title}. Matrices side by side: {shapes}.", text)


def _lines(name: str, matrix: Tensor) -> list[str]:
    return [f"{name}:", *("  " + " ".join(_number(value) for value in row) for row in matrix.tolist())]


def _number(value: float) -> str:
    """Six characters; a dot for an exact 0."""
    return "     ." if value == 0 else f"{value:6.2f}"


def _placed(lines: Sequence[Mapping[str, Tensor]]) -> list[_Placed]:
    """From left to right; a line that is too long goes on below."""
    placed: list[_Placed] = []
    below = float(TOP)
    for matrices in lines:
        x, y = float(MARGIN), below
        for name, matrix in matrices.items():
            one = _Placed(name, matrix, x, y)
            if x > MARGIN and x + one.width > WIDEST:
                one = _Placed(name, matrix, MARGIN, below)
            placed.append(one)
            x, y, below = one.x + one.width + GAP, one.y, max(below, one.y + one.height + GAP / 2)
    return placed


def _svg(placed: list[_Placed], title: str) -> str:
    parts = [words(MARGIN, 12, title, anchor="start", bold=True, size=11)]
    for one in placed:
        parts.append(words(one.x, one.y + 8, one.name, anchor="start", size=11))
        largest = float(one.matrix.abs().max()) or 1.0
        for i, row in enumerate(one.matrix.tolist()):
            for j, value in enumerate(row):
                x, y = one.x + j * CELL, one.y + LABEL + i * HEIGHT
                parts.append(box(x, y, CELL, HEIGHT, _shade(value / largest), "#bbb"))
                parts += [words(x + CELL / 2, y + HEIGHT / 2, f"{value:.2f}", size=10)] if value else []
    width = max(max(one.x + one.width for one in placed), 7.0 * len(title), 6.0 * len(LEGEND))
    below = max(one.y + one.height for one in placed)
    parts.append(words(MARGIN, below + 14, LEGEND, anchor="start", size=10))
    return document(width + 2 * MARGIN, below + 28, parts)


def _shade(share: float) -> str:
    """A colour between white and that of the sign; share: -1 to 1."""
    if share == 0:
        return EMPTY
    full = bytes.fromhex((USED if share > 0 else WARNING)[1:])
    strength = 0.15 + 0.85 * abs(share)
    return "#" + bytes(round(255 - strength * (255 - part)) for part in full).hex()
