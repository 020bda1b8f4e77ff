"""Compiling many kernels in one go: every rung, or what one model needs, with a report of what each takes.

`labkit build` is a face of this; so is the step that puts compiled PTX into a wheel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit.device.carried import Image, macro_words
from labkit.device.image import build_image
from labkit.device.kernel_folder import write_folder
from labkit.device.ladder import Ladder, Macros
from labkit.device.main_loop import by_kind, main_loop_mix
from labkit.device.occupancy import v100_occupancy
from labkit.device.ptx_entry import entry_head
from labkit.device.ptxas import assemble
from labkit.device.resources import Resources
from labkit.device.sources import Source, read_rung
from labkit.errors import KernelBuildError

ARCH = re.compile(r"sm_(\d\d\d?)a?|compute_70")
USUAL_BLOCK = 256  # threads, for kernels without launch bounds
SHIPPED_LIST = "shipped.json"  # in cuda/: what a wheel carries, readable where torch is not installed

Progress = Callable[[int, int, str], None]  # done, total, what comes next


@dataclass(frozen=True)
class Wanted:
    """One rung with one set of macros."""

    op: str
    rung: str
    macros: Macros
    entries: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One kernel of a build. ``occupancy``: share of a V100's warps, 0 to 1; None for other GPUs.

    ``main_loop``: instructions in one pass of it by kind of work (labkit.device.main_loop), {} if the kernel has no
    loop; None without machine code for sm_70.
    """

    name: str
    registers: int
    spill_stores: int
    spill_loads: int
    shared_bytes: int
    occupancy: float | None
    op: str
    rung: str
    entry: str
    macros: Mapping[str, str]
    block_threads: int
    arch: str
    main_loop: Mapping[str, int] | None

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def all_rungs(ladders: Iterable[Ladder]) -> list[Wanted]:
    """Every rung of every ladder with its default macros."""
    return [
        Wanted(ladder.op, rung, macros, ladder.entries)
        for ladder in ladders
        for rung in ladder.rungs
        for macros in ladder.default_macros
    ]


def for_model(ladders: Iterable[Ladder], config: Any, tp_size: int, kv_cache_dtype: str) -> list[Wanted]:
    """What one rank of a model needs: the rungs of each operation that run, in each of its specialisations."""
    return [
        Wanted(ladder.op, rung, macros, ladder.entries)
        for ladder in ladders
        for macros in ladder.specialisations(config, tp_size, kv_cache_dtype)
        for rung in ladder.in_use
    ]


def shipped(root: Path) -> list[Wanted]:
    """The list in the folder of sources: what ``all_rungs`` gave when ``shipped_text`` was last written there."""
    records = json.loads((root / SHIPPED_LIST).read_text(encoding="utf-8"))
    return [Wanted(r["op"], r["rung"], r["macros"], tuple(r["entries"])) for r in records]


def shipped_text(wanted: Sequence[Wanted]) -> str:
    """The list of what a wheel carries, one build a line."""
    records = [
        {"op": w.op, "rung": w.rung, "macros": macro_words(w.macros), "entries": list(w.entries)} for w in wanted
    ]
    return "[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n"


def build_all(
    wanted: Sequence[Wanted], arch: str = "sm_70", out: Path | None = None, progress: Progress | None = None
) -> list[Row]:
    """Compile everything; write PTX and cubins to ``out`` if given. One row for each kernel.

    ``arch``: "sm_70" (PTX and V100 cubins), "compute_70" (PTX only), or a newer GPU such as "sm_90" (PTX and cubins
    assembled from it). Rows tell of that architecture; compute_70 tells of sm_70. Raises KernelBuildError.
    """
    check_arch(arch)
    rows: list[Row] = []
    images: dict[tuple[str, str], list[tuple[Macros, Source, Image]]] = {}
    compiler = ""
    for done, item in enumerate(wanted):
        if progress:
            progress(done, len(wanted), f"{item.op}/{item.rung}")
        source = read_rung(item.op, item.rung)
        image = _for_arch(build_image(item.op, item.rung, item.macros, source), arch, item)
        rows += _rows(item, image, arch)
        images.setdefault((item.op, item.rung), []).append((item.macros, source, image))
        compiler = image.compiler
    if out is not None:
        _write(out, compiler, images)
    return rows


def check_arch(arch: str) -> None:
    """Raises KernelBuildError unless kernels for the V100 can be carried to this architecture."""
    match = ARCH.fullmatch(arch)
    if match is None or (match[1] and int(match[1]) < 70):
        cure = "Name sm_70, compute_70, or a newer GPU's, such as sm_90."
        raise KernelBuildError(f"Kernels are not built for {arch!r}.", cure=cure)


def _for_arch(image: Image, arch: str, item: Wanted) -> Image:
    if arch == "sm_70":
        return image
    if arch == "compute_70":
        return replace(image, cubins={})
    cubin, resources = assemble(image.ptx, arch, op=item.op, rung=item.rung)
    return replace(image, cubins={arch: cubin}, resources={**image.resources, arch: resources})


def _rows(item: Wanted, image: Image, arch: str) -> list[Row]:
    on_v100 = arch in ("sm_70", "compute_70")
    resources = image.resources["sm_70" if on_v100 else arch]
    missing = [entry for entry in item.entries if entry not in resources]
    if missing:
        message = f"{item.op}/{item.rung} defines no kernel {missing[0]!r}."
        raise KernelBuildError(message, cure=f"Kernels in it: {', '.join(resources)}.", op=item.op, rung=item.rung)
    return [_row(item, entry, resources[entry], image, arch, on_v100) for entry in item.entries]


def _row(item: Wanted, entry: str, needs: Resources, image: Image, arch: str, on_v100: bool) -> Row:
    words = macro_words(item.macros)
    named = " ".join(f"{name}={value}" for name, value in words.items())
    threads = _block_threads(image.ptx, entry)
    return Row(
        name=f"{item.op}/{item.rung}:{entry} {named}".strip(),
        registers=needs.registers,
        spill_stores=needs.spill_stores,
        spill_loads=needs.spill_loads,
        shared_bytes=needs.shared_bytes,
        occupancy=v100_occupancy(threads, needs.registers, needs.shared_bytes).fraction if on_v100 else None,
        op=item.op,
        rung=item.rung,
        entry=entry,
        macros=words,
        block_threads=threads,
        arch="sm_70" if on_v100 else arch,
        main_loop=by_kind(main_loop_mix(image.cubins["sm_70"], entry)) if arch == "sm_70" else None,
    )


def _block_threads(ptx: str, entry: str) -> int:
    head = entry_head(ptx, entry)
    return head.max_threads if head and head.max_threads else USUAL_BLOCK


def _write(out: Path, compiler: str, images: Mapping[tuple[str, str], list[tuple[Macros, Source, Image]]]) -> None:
    try:
        write_folder(out, compiler, images)
    except OSError as error:
        cure = "Choose another folder with --out."
        raise KernelBuildError(f"{out} cannot be written ({error.strerror}).", cure=cure) from error
