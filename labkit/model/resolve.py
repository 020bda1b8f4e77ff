"""From what a user calls a model to the directory or file that holds it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from labkit.errors import AssetError, ModelNotFoundError
from labkit.model.smollm2 import Progress, cached_file, fetch

TINY = Path(__file__).resolve().parents[1] / "assets" / "labkit-tiny"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
SHARD_NAME = re.compile(r"-\d+-of-(?!0*1\.)\d+\.safetensors$")  # one of several, which only an index makes whole
HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer*"]
KINDS = (
    "A model is a directory with config.json and *.safetensors, a .gguf file, "
    "`smollm2`, `labkit-tiny`, or a Hugging Face name `org/name`."
)


def resolve_model(name: str, *, cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The checkpoint that ``name`` means, fetched if need be.

    name: ``smollm2``, ``labkit-tiny``, a directory, a ``.gguf`` file, or ``org/name``; ``~`` is the home folder.
    cache_dir: instead of the user's cache folder. progress: called with (text, bytes so far, bytes in all).
    Raises ModelNotFoundError, or AssetError if a bundled model cannot be had.
    """
    if name == "smollm2":
        return fetch(cache_dir=cache_dir, progress=progress)
    if name == "labkit-tiny":
        return _packaged(TINY)
    if name.startswith("random:"):
        raise ModelNotFoundError(f"{name}: random weights at full size come with a later version.", cure=KINDS)
    if found := local_checkpoint(name):
        return found
    if HUB_NAME.fullmatch(name) and not name.endswith(".gguf") and not Path(name).exists():
        return _from_hub(name)
    raise ModelNotFoundError(f"{name!r} is not a model.", cure=KINDS)


def local_checkpoint(name: str) -> Path | None:
    """The directory or ``.gguf`` file of that name, None if there is none; ``~`` is the home folder.

    Raises ModelNotFoundError if nobody can tell: an unknown user's home, a name too long, a folder without permission.
    """
    try:
        path = Path(name).expanduser()
        found = bool(name) and (path.is_dir() or (path.suffix == ".gguf" and path.is_file()))
    except (OSError, RuntimeError, ValueError) as error:
        shown = repr(name if len(name) <= 80 else f"{name[:77]}...")
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")  # an OSError's text repeats the name
        raise ModelNotFoundError(f"{shown} cannot be looked up ({reason}).", cure=KINDS) from error
    return path if found else None


def smollm2_is_cached(cache_dir: Path | None = None) -> bool:
    """Whether ``smollm2`` can be had without a download."""
    return cached_file(cache_dir=cache_dir) is not None


def _packaged(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise AssetError(f"{folder.name} is missing from this installation.", cure="Install labkit again.")
    return folder


def _from_hub(name: str) -> Path:
    """From the local Hugging Face cache if it is complete there, else downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(name, local_files_only=True, allow_patterns=HUB_PATTERNS))
        if _is_complete(cached):
            return cached
    except LocalEntryNotFoundError:
        pass  # not there yet
    try:
        return Path(snapshot_download(name, allow_patterns=HUB_PATTERNS))
    except Exception as error:  # whatever the hub's client and its HTTP library raise, the cure is the same
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelNotFoundError(
            f"{name} is no local path, and it could not be downloaded from Hugging Face ({reason[0]}).",
            cure=f"Where the network is reachable run `hf download {name} --local-dir {name.partition('/')[2]}`, "
            f"then give that directory. {KINDS}",
        ) from error


def _is_complete(folder: Path) -> bool:
    """Whether config and weights are all there: a download that was cut off leaves some of the shards."""
    if not (folder / "config.json").is_file():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(not SHARD_NAME.search(file.name) and file.is_file() for file in folder.glob("*.safetensors"))
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return bool(shards) and all((folder / shard).is_file() for shard in shards)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # a broken index: the hub has the right one
