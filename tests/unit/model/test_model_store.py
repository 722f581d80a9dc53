"""The cache gives whole models only: whatever was interrupted or damaged is made again."""

import hashlib
import json
import math
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from safetensors.numpy import save_file

from slipstream.shared.errors import ModelError
from slipstream.shared.model.cache_directory import locked
from slipstream.shared.model.catalogue import CatalogueEntry
from slipstream.shared.model.config import load_config
from slipstream.shared.model.store import (
    default_cache_dir,
    list_models,
    pull_model,
    remove_model,
    resolve_model,
)

Write = Callable[..., dict[str, np.ndarray]]


def ignore(_line: str) -> None:
    pass


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class FakeIndex:
    """Stands for pip: copies a wheel, notes each fetch, and can cut what it delivers."""

    def __init__(self, directory: Path, write_gguf: Write) -> None:
        gguf = directory / "tiny.gguf"
        write_gguf(gguf)
        self.wheel = directory / "tiny-1.0-py3-none-any.whl"
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.write(gguf, "tiny/tiny.gguf")
        self.cache_uses: list[bool] = []
        self.share = 1.0
        self.num_cut = math.inf  # the first so many are delivered cut
        self.entry = CatalogueEntry(
            name="tiny",
            distribution="tiny",
            version="1.0",
            wheel_sha256=sha256(self.wheel),
            member="tiny/tiny.gguf",
            gguf_sha256=sha256(gguf),
            download_size="1 kB",
        )

    @property
    def num_fetched(self) -> int:
        """How often the wheel was asked for."""
        return len(self.cache_uses)

    def fetch(self, _entry: CatalogueEntry, directory: Path, *, is_cache_used: bool) -> Path:
        """Deliver the wheel, or its beginning."""
        path = directory / self.wheel.name
        assert not path.exists(), "pip would keep the one that is there"
        self.cache_uses.append(is_cache_used)
        content = self.wheel.read_bytes()
        share = self.share if self.num_fetched <= self.num_cut else 1.0
        path.write_bytes(content[: int(len(content) * share)])
        return path

    def resolve(self, cache_dir: Path, **options: Any) -> Path:
        """Resolve the one model there is."""
        catalogue = {self.entry.name: self.entry}
        options = {"report": ignore, "catalogue": catalogue, "fetch": self.fetch} | options
        return resolve_model("tiny", cache_dir, **options)


@pytest.fixture
def index(tmp_path: Path, write_gguf: Write) -> FakeIndex:
    directory = tmp_path / "index"
    directory.mkdir()
    return FakeIndex(directory, write_gguf)


def test_second_use_neither_fetches_nor_converts(tmp_path: Path, index: FakeIndex) -> None:
    first = index.resolve(tmp_path)
    second = index.resolve(tmp_path, verify=True)

    assert first == second == tmp_path / "models" / "tiny-1.0"
    assert 1 == index.num_fetched
    assert "tiny" == load_config(first).name
    assert not (first / "download").exists()


def test_interrupted_download_leaves_nothing_and_is_fetched_again(
    tmp_path: Path, index: FakeIndex
) -> None:
    index.share = 0.5
    with pytest.raises(ModelError, match="SHA-256"):
        index.resolve(tmp_path)
    assert [] == list_models(tmp_path)

    index.share = 1.0
    index.resolve(tmp_path)

    assert 3 == index.num_fetched


def test_broken_wheel_is_fetched_once_more_past_the_cache(tmp_path: Path, index: FakeIndex) -> None:
    index.share, index.num_cut = 0.5, 1

    model_dir = index.resolve(tmp_path)

    assert [True, False] == index.cache_uses
    assert [None] == [model.damage for model in list_models(tmp_path)]
    assert "tiny" == load_config(model_dir).name


def test_wheel_that_is_broken_twice_is_refused(tmp_path: Path, index: FakeIndex) -> None:
    index.share = 0.5

    with pytest.raises(ModelError, match="SHA-256"):
        index.resolve(tmp_path)

    assert [True, False] == index.cache_uses


def test_gguf_with_another_hash_is_refused(tmp_path: Path, index: FakeIndex) -> None:
    index.entry = CatalogueEntry(**{**vars(index.entry), "gguf_sha256": "0" * 64})

    with pytest.raises(ModelError, match=r"model\.gguf has SHA-256"):
        index.resolve(tmp_path)


def test_wheel_without_the_file_is_refused(tmp_path: Path, index: FakeIndex) -> None:
    index.entry = CatalogueEntry(**{**vars(index.entry), "member": "elsewhere.gguf"})

    with pytest.raises(ModelError, match="elsewhere"):
        index.resolve(tmp_path)


def cut_weights(model_dir: Path) -> None:
    path = model_dir / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def lose_tokenizer(model_dir: Path) -> None:
    (model_dir / "tokenizer.json").unlink()


def lose_manifest(model_dir: Path) -> None:
    (model_dir / "slipstream.json").unlink()


def cut_manifest(model_dir: Path) -> None:
    path = model_dir / "slipstream.json"
    path.write_text(path.read_text()[:40])


def age_manifest(model_dir: Path) -> None:
    path = model_dir / "slipstream.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 0}))


@pytest.mark.parametrize(
    "damage", [cut_weights, lose_tokenizer, lose_manifest, cut_manifest, age_manifest]
)
def test_damaged_model_is_made_again(
    tmp_path: Path, index: FakeIndex, damage: Callable[[Path], None]
) -> None:
    model_dir = index.resolve(tmp_path)
    whole = sha256(model_dir / "model.safetensors")
    damage(model_dir)
    lines: list[str] = []

    index.resolve(tmp_path, report=lines.append)

    assert 2 == index.num_fetched
    assert any("damaged" in line for line in lines)
    assert whole == sha256(model_dir / "model.safetensors")
    assert (model_dir / "tokenizer.json").is_file()


def test_flipped_bit_is_found_by_verification(tmp_path: Path, index: FakeIndex) -> None:
    model_dir = index.resolve(tmp_path)
    path = model_dir / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)

    index.resolve(tmp_path, verify=True)

    assert 2 == index.num_fetched


def test_what_a_killed_process_left_is_never_used(tmp_path: Path, index: FakeIndex) -> None:
    partial = tmp_path / "models" / ".tiny-1.0.partial"
    (partial / "download").mkdir(parents=True)
    (partial / "config.json").write_text("{}")

    model_dir = index.resolve(tmp_path)

    assert not partial.exists()
    assert 2 == load_config(model_dir).num_layers


def test_threads_that_pull_at_once_fetch_once(tmp_path: Path, index: FakeIndex) -> None:
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(index.resolve(tmp_path))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 4 == len(found)
    assert 1 == index.num_fetched


PULL = """
import sys
from pathlib import Path
from slipstream.shared.model.store import resolve_model

resolve_model(sys.argv[1], Path(sys.argv[2]), report=lambda line: print(line, flush=True))
"""


def test_processes_that_pull_at_once_convert_once(tmp_path: Path, write_gguf: Write) -> None:
    """Both are made to wait for the lock, so that neither sees the other's finished work."""
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    model_dir = tmp_path / "models" / f"tiny-{sha256(path)[:12]}"
    command = [sys.executable, "-c", PULL, str(path), str(tmp_path)]

    with locked(model_dir, ignore):
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for process in processes:
            assert "waiting for another process" in process.stdout.readline()
    outputs = [process.communicate(timeout=20)[0] for process in processes]

    assert [0, 0] == [process.returncode for process in processes]
    assert 1 == sum(output.count("converting tiny.gguf") for output in outputs)
    assert [None] == [model.damage for model in list_models(tmp_path)]


def test_models_are_listed_and_removed(tmp_path: Path, index: FakeIndex) -> None:
    model_dir = index.resolve(tmp_path)
    resolve_model("fake", tmp_path, report=ignore)

    listed = list_models(tmp_path)

    assert ["fake", "tiny"] == [model.name for model in listed]
    assert all(model.damage is None for model in listed)
    assert listed[1].num_bytes == remove_model("tiny", tmp_path, report=ignore)
    assert not model_dir.exists()
    with pytest.raises(ModelError, match="fake"):
        remove_model("tiny", tmp_path, report=ignore)


def test_listing_names_the_damage(tmp_path: Path, index: FakeIndex) -> None:
    cut_weights(index.resolve(tmp_path))

    (model,) = list_models(tmp_path)

    assert "model.safetensors" in str(model.damage)


def test_gguf_file_is_converted_once_per_content(tmp_path: Path, write_gguf: Write) -> None:
    path = tmp_path / "my model.gguf"
    write_gguf(path)
    first = resolve_model(str(path), tmp_path, report=ignore)
    changed = (first / "config.json").stat().st_mtime_ns
    again = resolve_model(str(path), tmp_path, report=ignore)
    write_gguf(path, norms=1.0)
    other = resolve_model(str(path), tmp_path, report=ignore)

    assert first == again != other
    assert changed == (again / "config.json").stat().st_mtime_ns
    assert "my_model" == load_config(first).name


def hugging_face_directory(directory: Path, *shards: str) -> Path:
    directory.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (directory / name).write_text("{}")
    for shard in shards:
        save_file({"a": np.zeros(4, np.float32)}, directory / shard)
    return directory


def test_local_directory_is_used_where_it_lies(tmp_path: Path) -> None:
    directory = hugging_face_directory(tmp_path / "model", "model.safetensors")

    assert directory == resolve_model(str(directory), tmp_path / "cache", report=ignore)
    assert not (tmp_path / "cache").exists()


def test_sharded_directory_needs_all_its_shards(tmp_path: Path) -> None:
    directory = hugging_face_directory(tmp_path / "model", "one.safetensors", "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    assert directory == resolve_model(str(directory), tmp_path, report=ignore)

    (directory / "two.safetensors").unlink()

    with pytest.raises(ModelError, match=r"two\.safetensors"):
        resolve_model(str(directory), tmp_path, report=ignore)


def test_directory_without_tokenizer_or_weights_is_refused(tmp_path: Path) -> None:
    directory = hugging_face_directory(tmp_path / "model")
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        resolve_model(str(directory), tmp_path, report=ignore)
    (directory / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        resolve_model(str(directory), tmp_path, report=ignore)


def test_cut_local_weights_are_refused(tmp_path: Path) -> None:
    directory = hugging_face_directory(tmp_path / "model", "model.safetensors")
    (directory / "model.safetensors").write_bytes(b"\x00")

    with pytest.raises(ModelError, match="safetensors"):
        resolve_model(str(directory), tmp_path, report=ignore)


def test_hub_id_without_network_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(hub_id: str, **_options: Any) -> str:
        raise ConnectionError("no route to host\nmore lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", no_network)

    with pytest.raises(ModelError, match=r"org/name .*no route to host\)"):
        resolve_model("org/name", tmp_path, report=ignore)


def test_hub_id_is_fetched_without_other_weight_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = hugging_face_directory(tmp_path / "snapshot", "model.safetensors")
    asked: dict[str, Any] = {}

    def snapshot(hub_id: str, **options: Any) -> str:
        asked.update(options, hub_id=hub_id)
        return str(directory)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)

    assert directory == resolve_model("org/name", tmp_path, report=ignore)
    assert "org/name" == asked["hub_id"]
    assert not any(pattern.endswith((".bin", "*")) for pattern in asked["allow_patterns"][:3])


@pytest.mark.parametrize("spec", ["", "smollm", "./missing", "missing.gguf", "a/b/c", "../x"])
def test_anything_else_is_answered_with_what_is_accepted(tmp_path: Path, spec: str) -> None:
    with pytest.raises(ModelError, match=r"smollm2-135m, fake.*\.gguf.*org/name"):
        resolve_model(spec, tmp_path, report=ignore)


def test_cache_follows_the_desktop_convention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert Path("/somewhere/slipstream") == default_cache_dir()
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert Path.home() / ".cache" / "slipstream" == default_cache_dir()


@pytest.mark.model
@pytest.mark.timeout(120)
def test_default_model_is_whole(model_dir: Path) -> None:
    lines: list[str] = []

    assert model_dir == pull_model("smollm2-135m", default_cache_dir(), report=lines.append)
    assert 1 == len(lines)
    config = load_config(model_dir)
    assert ("smollm2-135m", 30, 49152, (2,)) == (
        config.name,
        config.num_layers,
        config.vocab_size,
        config.eos_token_ids,
    )
