"""Which tensor lies in which safetensors file: headers and index, no tensor data.

A safetensors file is an 8-byte little-endian length, a JSON header of that length, and the data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import CheckpointError
from labkit.model.checkpoint.names import canonical_name, is_vision
from labkit.model.checkpoint.report import LoadReport

INDEX_NAME = "model.safetensors.index.json"
FETCH_AGAIN = "Fetch the file again."


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies. dtype: safetensors' name for it (``F16``, ``BF16``, ``I32`` ...)."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; raises CheckpointError if the file is missing or holds anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}).", cure=FETCH_AGAIN) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}).", cure=FETCH_AGAIN) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object.", cure=FETCH_AGAIN)
    return value


def read_header(path: Path) -> dict[str, Entry]:
    """Name -> entry of one file; raises CheckpointError if it is unreadable or shorter than its header says."""
    try:
        size, length, raw = _read_head(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}).", cure=FETCH_AGAIN) from error
    try:
        header = {name: value for name, value in json.loads(raw).items() if name != "__metadata__"}
        entries = {name: _entry(path, name, value) for name, value in header.items()}
        needed = 8 + length + max((value["data_offsets"][1] for value in header.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise CheckpointError(f"{path} has no readable safetensors header.", cure=FETCH_AGAIN) from error
    if size < needed:
        raise CheckpointError(
            f"{path} is truncated: {size:,} bytes where its header says {needed:,}.", cure=FETCH_AGAIN
        )
    return entries


def _read_head(path: Path) -> tuple[int, int, bytes]:
    """(bytes of the file, bytes of the header, the header)."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise CheckpointError(f"{path} ends within its header.", cure=FETCH_AGAIN)
        return size, length, file.read(length)


def _entry(path: Path, name: str, value: dict[str, Any]) -> Entry:
    start, end = value["data_offsets"]
    return Entry(path, name, str(value["dtype"]), tuple(int(size) for size in value["shape"]), int(end) - int(start))


def find_tensors(directory: Path, report: LoadReport) -> dict[str, Entry]:
    """Canonical name -> entry of every text tensor in the directory; vision tensors are skipped with a note.

    Raises CheckpointError for a directory without weights, or an index that does not agree with its files.
    """
    index = directory / INDEX_NAME
    entries = _by_index(index, report) if index.is_file() else read_header(_only_file(directory))
    vision = [name for name in entries if is_vision(name)]
    if vision:
        report.note(f"{len(vision)} vision tensors skipped: labkit runs the text model only.")
    return _canonical({name: entry for name, entry in entries.items() if not is_vision(name)})


def _only_file(directory: Path) -> Path:
    single = directory / "model.safetensors"
    files = sorted(directory.glob("*.safetensors"))
    if single in files:
        return single
    if not files:
        raise CheckpointError(
            f"{directory} holds no *.safetensors files.",
            cure="Fetch the weights, or convert them to safetensors if they are in another format.",
        )
    if len(files) > 1:
        raise CheckpointError(
            f"{directory} holds {len(files)} shards but no {INDEX_NAME}.", cure="Fetch the index too."
        )
    return files[0]


def _by_index(index: Path, report: LoadReport) -> dict[str, Entry]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map.", cure=FETCH_AGAIN)
    shards = {shard: _read_shard(index, shard) for shard in sorted(set(map(str, weight_map.values())))}
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise CheckpointError(
                f"{index.name} places {name} in {shard}, which does not hold it.",
                cure="Fetch the index and the shards again, from the same revision.",
            )
    _note_strays(weight_map, shards, report)
    return {name: shards[shard][name] for name, shard in weight_map.items()}


def _read_shard(index: Path, shard: str) -> dict[str, Entry]:
    path = index.parent / shard
    if Path(shard).name != shard or not path.is_file():
        raise CheckpointError(f"{index.name} names the shard {shard}, which is absent.", cure=f"Fetch {shard}.")
    return read_header(path)


def _note_strays(weight_map: dict[str, str], shards: dict[str, dict[str, Entry]], report: LoadReport) -> None:
    for shard, entries in shards.items():
        for name in entries:
            if name not in weight_map:
                report.note(f"{name} in {shard} is not in the index: ignored.")
            elif weight_map[name] != shard:
                report.note(f"{name} stands in {shard} too: the one in {weight_map[name]} is used, as the index says.")


def _canonical(entries: dict[str, Entry]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for name, entry in entries.items():
        clash = found.setdefault(canonical_name(name), entry)
        if clash is not entry:
            raise CheckpointError(
                f"{clash.name} and {name} are the same tensor under two names.",
                cure="Remove one of them from the checkpoint.",
            )
    return found
