"""From what a user calls a model to the directory or file that holds it."""

from __future__ import annotations

import re
from pathlib import Path

from labkit.errors import AssetError, ModelNotFoundError
from labkit.model.smollm2 import Progress, cached_file, fetch

TINY = Path(__file__).resolve().parents[1] / "assets" / "labkit-tiny"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
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
    path = Path(name).expanduser()
    if name and (path.is_dir() or (path.is_file() and path.suffix == ".gguf")):
        return path
    if HUB_NAME.fullmatch(name) and path.suffix != ".gguf" and not path.exists():
        return _from_hub(name)
    raise ModelNotFoundError(f"{name!r} is not a model.", cure=KINDS)


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
        if (cached / "config.json").is_file() and any(cached.glob("*.safetensors")):
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
