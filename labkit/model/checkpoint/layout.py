"""The geometry of a quantized module, whatever its format: outputs, inputs, groups, and the words that hold nibbles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labkit.errors import CheckpointError
from labkit.model.checkpoint.base import bounds, group_span

PER_WORD = 8  # nibbles in an int32
SAME_REVISION = "Fetch the checkpoint again; config.json must be from the same revision."

Shape = tuple[int, ...]
Span = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """N outputs, K inputs, g inputs in a group."""

    outputs: int
    inputs: int
    group_size: int

    def part(self, rows: slice | None, cols: slice | None) -> Part:
        """Where a slice of the module lies; raises CheckpointError if its inputs cut a group."""
        outputs, inputs = bounds(rows, self.outputs), bounds(cols, self.inputs)
        return Part(outputs, inputs, group_span(inputs, self.group_size))


@dataclass(frozen=True)
class Part:
    """A slice of a module: the outputs, inputs and groups in it."""

    outputs: Span
    inputs: Span
    groups: Span

    @property
    def output_words(self) -> Span:
        """The words that hold the outputs where nibbles are packed along N."""
        return _words(self.outputs)

    @property
    def input_words(self) -> Span:
        """The words that hold the inputs where nibbles are packed along K."""
        return _words(self.inputs)

    @property
    def in_words(self) -> slice:
        """The outputs among the nibbles of ``output_words``."""
        first = self.output_words[0] * PER_WORD
        return slice(self.outputs[0] - first, self.outputs[1] - first)


def _words(span: Span) -> Span:
    return span[0] // PER_WORD, count_words(span[1])


def count_words(nibbles: int) -> int:
    """Words that ``nibbles`` fill, the last perhaps in part."""
    return -(-nibbles // PER_WORD)


def check_shapes(module: str, found: Mapping[str, Shape], expected: Mapping[str, Shape]) -> None:
    """Raises CheckpointError unless the tensors have the shapes that follow from one another, none of them empty."""
    if any(found[field] != shape or min(shape) <= 0 for field, shape in expected.items()):
        raise CheckpointError(
            f"{module} has shapes that do not belong together: {_listed(found)}; expected {_listed(expected)}.",
            cure=SAME_REVISION,
        )


def check_matrices(module: str, found: Mapping[str, Shape]) -> None:
    """Raises CheckpointError unless every shape has two dimensions."""
    if any(len(shape) != 2 for shape in found.values()):
        raise CheckpointError(
            f"{module} has shapes that do not belong together: {_listed(found)}; expected matrices.", cure=SAME_REVISION
        )


def check_groups(module: str, inputs: int, groups: int, asked: int | None, multiple: int) -> int:
    """Inputs in a group.

    asked: the config's group size; 0 and less mean all inputs, None that it says nothing. multiple: what a group must
    be a multiple of, so that it fills whole bytes or words. Raises CheckpointError if config and shapes disagree.
    """
    size = inputs // groups if asked is None else asked if asked > 0 else inputs
    if inputs % (groups if asked is None else size):
        split = f"{groups} groups" if asked is None else f"groups of {size}"
        raise CheckpointError(f"{module} has {inputs} inputs, which do not divide into {split}.", cure=SAME_REVISION)
    if groups * size != inputs:
        raise CheckpointError(
            f"{module} has {groups} groups for {inputs} inputs, which is not the group size {size} of config.json.",
            cure=SAME_REVISION,
        )
    if size % multiple:
        cure = "labkit reads groups of 32, 64 and 128 inputs, and others that fill whole words."
        raise CheckpointError(f"{module} has groups of {size}, which is no multiple of {multiple}.", cure=cure)
    return size


def _listed(shapes: Mapping[str, Shape]) -> str:
    return ", ".join(f"{field} {list(shape)}" for field, shape in shapes.items())
