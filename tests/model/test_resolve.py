"""What a model may be called."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from labkit.bench.fit_weights import weigh
from labkit.errors import AssetError, ModelNotFoundError
from labkit.model import resolve
from labkit.model.resolve import resolve_model


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


@pytest.mark.parametrize("state", ["complete", "a shard missing", "no index", "broken index", "empty index"])
def test_a_download_that_was_cut_off_is_completed(state: str, hub: FakeHub, tmp_path: Path) -> None:
    hub.cached, hub.remote = tmp_path / "cached", tmp_path / "fetched"
    hub.cached.mkdir()
    (hub.cached / "config.json").write_text("{}")
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    weight_map = {"a.weight": shards[0], "b.weight": shards[1]}
    index = {"broken index": '{"weight_map": ', "empty index": '{"weight_map": {}}'}
    for shard in shards[: 1 if state == "a shard missing" else 2]:
        (hub.cached / shard).write_bytes(b"")
    if state != "no index":
        text = index.get(state, json.dumps({"weight_map": weight_map}))
        (hub.cached / "model.safetensors.index.json").write_text(text)
    assert resolve_model("org/name") == (hub.cached if state == "complete" else hub.remote)
    assert hub.asked_network == (state != "complete")


@pytest.mark.parametrize("find", [resolve_model, weigh])
@pytest.mark.parametrize("name", ["~nosuchuser/x", "x" * 5000, "a/" + "b" * 5000])
def test_names_that_the_system_refuses(find: Callable[[str], object], name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="cannot be looked up") as caught:
        find(name)
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("find", [resolve_model, weigh])
def test_a_folder_without_permission(
    find: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_dir", forbidden)
    with pytest.raises(ModelNotFoundError, match=r"cannot be looked up \(Permission denied\)"):
        find(str(tmp_path))


def forbidden(*_: object) -> NoReturn:
    raise PermissionError(errno.EACCES, "Permission denied")
