"""Operations between the 32 lanes of a warp: shuffle, vote, match.

Values are laid out as [rows, warps, 32] for the whole launch and [1, warps, 32] for a selection. By the time one of
these runs, the scheduler has brought the lanes of its mask together; what is left to check is that lanes name
themselves in their mask and read only from lanes that take part.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labkit.sim.geometry import WARP

if TYPE_CHECKING:
    from labkit.sim.threads import Threads

Array = npt.NDArray[Any]
FULL_MASK = 0xFFFFFFFF
LANE = np.arange(WARP)
UNDEFINED = np.uint32(0x7FC0DEAD)  # what a shuffle brings from a lane that is not there: NaN as a float, odd as an int


# Between registers and warps


def to_warps(threads: Threads, value: Array) -> Array:
    """[rows, warps, 32]; lanes of incomplete warps that do not take part hold 0."""
    if threads.complete_warps:
        if value.shape[1] == 1:
            value = np.broadcast_to(value, (value.shape[0], threads.shape[1]))
        return value.reshape(value.shape[0], -1, WARP)
    row, lane, count = places(threads)
    warps = np.zeros((1, count, WARP), value.dtype)
    warps[0, row, lane] = value[0]
    return warps


def from_warps(threads: Threads, warps: Array) -> Array:
    """The inverse of to_warps; ``warps`` may hold one value per warp ([rows, warps, 1])."""
    if warps.shape[2] == 1:
        warps = np.broadcast_to(warps, (*warps.shape[:2], WARP))
    if threads.complete_warps:
        return warps.reshape(warps.shape[0], -1)
    row, lane, _ = places(threads)
    return warps[0, row, lane][None]


def places(threads: Threads) -> tuple[Array, Array, int]:
    """For a selection: (row of each thread's warp among the warps that take part, lane, number of such warps)."""
    known = threads.__dict__.get("_places")
    if known is None:
        warps, row = np.unique(threads.warp_of, return_inverse=True)
        known = threads.__dict__["_places"] = (row, threads.flat[0] % WARP, len(warps))
    return known


def present_bits(threads: Threads) -> Array:
    """[1, warps or 1, 1] uint32: the lanes of each warp that take part."""
    if threads.complete_warps:
        return np.full((1, 1, 1), FULL_MASK, np.uint32)
    return _bits(to_warps(threads, np.ones((1, 1), bool).repeat(threads.count, 1)))


def _bits(flags: Array) -> Array:
    """[rows, warps, 32] bool -> [rows, warps, 1] uint32, lane 0 in the lowest bit."""
    return np.packbits(flags, axis=2, bitorder="little").view(np.uint32)


def check_members(threads: Threads, mask: Array, site: int) -> None:
    """A lane that executes a .sync operation must be in its own mask, and the others in it must have the same mask."""
    if _is_full(mask):
        return
    left_out = (mask >> threads.laneid) & np.uint32(1) == 0
    if left_out.any():
        shown = int(np.broadcast_to(mask, left_out.shape)[left_out][0])
        text = f"executes a warp operation whose mask {shown:#010x} does not name its own lane"
        threads.run.report_lanes("missing-lanes", site, text, threads, left_out)
    if mask.shape[1] > 1:
        _check_agreement(threads, mask, site)


def _is_full(mask: Array) -> bool:
    return mask.size == 1 and int(mask.flat[0]) == FULL_MASK


def _check_agreement(threads: Threads, mask: Array, site: int) -> None:
    """Lanes that take part together must name the same lanes."""
    masks = to_warps(threads, mask)
    present = present_bits(threads)
    if ((masks == masks[..., :1]) | (masks == 0)).all():
        return
    equal = masks[..., :, None] == masks[..., None, :]
    same = np.packbits(equal, axis=3, bitorder="little").view(np.uint32)[..., 0]
    others = from_warps(threads, masks & present & ~same)
    disagreeing = others != 0
    if disagreeing.any():
        mine, named = (int(np.broadcast_to(each, others.shape)[disagreeing][0]) for each in (mask, others))
        lane = (named & -named).bit_length() - 1
        text = f"executes a warp operation with the mask {mine:#010x}, which names lane {lane}, whose mask is another"
        threads.run.report_lanes("missing-lanes", site, text, threads, disagreeing)


# Operations


def shuffle(
    threads: Threads, mode: str, value: Array, lane: Array, clamp: Array, mask: Array, site: int, wants_predicate: bool
) -> tuple[Array, Array | None]:
    """shfl.sync.up/down/bfly/idx; see Threads.shuffle."""
    check_members(threads, mask, site)
    if lane.size == 1 and clamp.size == 1:
        source, in_range = _fixed_sources(mode, int(lane.flat[0]) & 31, int(clamp.flat[0]))
    else:
        operands = (to_warps(threads, operand).astype(np.int64) for operand in (lane, clamp))
        source, in_range = _sources(mode, *operands)
    predicate = _predicate(threads, in_range) if wants_predicate else None
    if threads.whole and value.shape[1] == 1:
        return value, predicate  # all lanes hold the same
    moved = _move(to_warps(threads, value), source)
    if not (threads.complete_warps and _is_full(mask)):
        moved = np.where(_undefined_sources(threads, source, mask, site), UNDEFINED, moved)
    return from_warps(threads, moved), predicate


def _move(warps: Array, source: Array) -> Array:
    if source.ndim == 1:
        return warps.take(source, axis=2)
    shape = np.broadcast_shapes(warps.shape, source.shape)
    return np.take_along_axis(np.broadcast_to(warps, shape), np.broadcast_to(source, shape), axis=2)


@lru_cache(maxsize=1024)
def _fixed_sources(mode: str, lane: int, clamp: int) -> tuple[Array, Array]:
    return _sources(mode, np.array(lane & 31), np.array(clamp))


def _sources(mode: str, operand: Array, clamp: Array) -> tuple[Array, Array]:
    """(source lane, in range) for each lane, as the PTX manual defines them from the operands b and c."""
    operand = operand & 31
    segment, limit = (clamp >> 8) & 31, clamp & 31
    first, last = LANE & segment, (LANE & segment) | (limit & ~segment)
    if mode == "up":
        source = LANE - operand
        in_range = source >= last
    else:
        moved = {"down": LANE + operand, "bfly": LANE ^ operand, "idx": first | (operand & ~segment)}
        source = moved[mode]
        in_range = source <= last
    return np.where(in_range, source, LANE), in_range


def _predicate(threads: Threads, in_range: Array) -> Array:
    if in_range.ndim > 1:
        return from_warps(threads, in_range)
    if threads.whole:
        return np.tile(in_range, threads.warps_per_block)[None]
    return in_range.take(threads.flat % WARP)


def _undefined_sources(threads: Threads, source: Array, mask: Array, site: int) -> Array:
    """[rows, warps, 32]: lanes that read from one which does not take part, or not with them.

    The PTX manual leaves the value undefined. It is a fault if the mask claims that the source is there, else only if
    the value is stored: code for ragged warps often reads too far and throws the value away.
    """
    present = to_warps(threads, np.ones((1, 1), bool))
    shape = np.broadcast_shapes(present.shape, source.shape)
    source = np.broadcast_to(source, shape)
    there = np.take_along_axis(np.broadcast_to(present, shape), source, axis=2)
    members = to_warps(threads, mask)
    named = (members >> source.astype(np.uint32)) & np.uint32(1) == 1
    wrong, outside = present & named & ~there, present & ~named
    own = (members >> LANE.astype(np.uint32)) & np.uint32(1) == 1  # the others are at fault already
    threads.run.brought_undefined |= bool((outside & own).any())
    if wrong.any():
        lane = int(np.broadcast_to(source, wrong.shape)[wrong][0])
        text = f"reads from lane {lane}, which its mask names but which has ended or does not exist"
        threads.run.report_lanes("missing-lanes", site, text, threads, from_warps(threads, wrong))
    return wrong | outside


def check_defined(threads: Threads, values: list[Array], site: int) -> None:
    """Reports threads that store what a shuffle brought from a lane which does not take part."""
    for value in values:
        if value.dtype.itemsize < UNDEFINED.itemsize:
            continue
        halves = np.ascontiguousarray(value).view(np.uint32).reshape(*value.shape, -1)
        undefined = (halves == UNDEFINED).any(axis=-1)
        if undefined.any():
            text = "stores what a shuffle read from a lane that takes no part, which may be anything"
            threads.run.report_lanes("missing-lanes", site, text, threads, undefined)


def vote(threads: Threads, mode: str, predicate: Array, mask: Array, site: int) -> Array:
    """vote.sync; see Threads.vote."""
    check_members(threads, mask, site)
    if threads.complete_warps and predicate.size == 1 and mask.size == 1:
        return _vote_alike(mode, bool(predicate.flat[0]), mask)
    voters = mask if mask.size == 1 else to_warps(threads, mask)
    yes = _bits(to_warps(threads, predicate)) & voters
    everyone = present_bits(threads) & voters
    if mode == "ballot":
        return from_warps(threads, yes)
    answers = {"any": yes != 0, "all": yes == everyone, "uni": (yes == 0) | (yes == everyone)}
    return from_warps(threads, answers[mode])


def _vote_alike(mode: str, predicate: bool, mask: Array) -> Array:
    if mode == "ballot":
        return mask if predicate else np.zeros_like(mask)
    return np.full((1, 1), True if mode == "uni" else predicate)


def match(threads: Threads, mode: str, value: Array, mask: Array, site: int) -> tuple[Array, Array]:
    """match.sync.any or .all; see Threads.match."""
    check_members(threads, mask, site)
    warps = to_warps(threads, value)
    members = present_bits(threads) & to_warps(threads, mask)
    equal = warps[..., :, None] == warps[..., None, :]
    same = np.packbits(equal, axis=3, bitorder="little").view(np.uint32)[..., 0] & members
    if mode == "any":
        return from_warps(threads, same), np.ones((1, 1), bool)
    agreed = same == members
    return from_warps(threads, np.where(agreed, members, np.uint32(0))), from_warps(threads, agreed)


def active_mask(threads: Threads) -> Array:
    """The lanes of each thread's warp that run together now."""
    bits = present_bits(threads)
    return bits[0] if bits.size == 1 else from_warps(threads, bits)
