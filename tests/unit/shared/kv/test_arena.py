"""The arena: made and reserved whole, mapped only by who works with the same blocks."""

import errno
import os
import stat
from pathlib import Path

import pytest

from slipstream.shared.errors import ArenaError
from slipstream.shared.ids import HostId
from slipstream.shared.kv.arena import Arena, arena_path, old_arenas
from slipstream.shared.kv.layout import KvLayout

LAYOUT = KvLayout(num_layers=1, num_kv_heads=1, head_dim=2, kind="fake")


def make(directory: Path, epoch: int = 7) -> Arena:
    return Arena.create(directory, HostId("host"), epoch, 3, LAYOUT)


def test_what_one_mapping_writes_another_reads(tmp_path: Path) -> None:
    made = make(tmp_path)
    opened = Arena.open(made.path, LAYOUT)
    made.blocks[2 * LAYOUT.block_bytes] = 42
    made.generations[2] = 5

    assert (HostId("host"), 7, 3) == (opened.host_id, opened.epoch, opened.num_blocks)
    assert (42, 5) == (opened.blocks[2 * LAYOUT.block_bytes], opened.generations[2])
    assert 3 * LAYOUT.block_bytes == len(opened.blocks)
    made.close()
    opened.close()


def test_only_its_user_may_read_it_and_every_page_is_reserved(tmp_path: Path) -> None:
    arena = make(tmp_path / "new")
    status = arena.path.stat()
    arena.close()

    assert 0o600 == stat.S_IMODE(status.st_mode)
    assert 0o700 == stat.S_IMODE(arena.path.parent.stat().st_mode)
    assert status.st_blocks * 512 >= status.st_size


def test_a_full_file_system_is_told_with_size_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ArenaError, match=r"needs 0 MiB in .*No space left.*--kv-memory"):
        make(tmp_path)

    assert [] == list(tmp_path.iterdir())


def test_what_cannot_be_made_is_an_arena_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    make(tmp_path).close()
    with pytest.raises(ArenaError, match="File exists"):
        make(tmp_path)
    with pytest.raises(ArenaError, match="--kv-memory"):
        make(tmp_path / "file" / "below")

    assert arena_path(tmp_path, 7).exists(), "a file of somebody else stays"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes"),
        (b"x" * 100, "100 bytes"),
        (b"x" * 8192, "is no KV arena"),
        (b"\0" * 8192, "is no KV arena"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "arena.1"
    path.write_bytes(content)
    with pytest.raises(ArenaError, match=message):
        Arena.open(path, LAYOUT)


def test_a_missing_arena_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArenaError, match=r"no KV arena at .*arena\.1"):
        Arena.open(tmp_path / "arena.1", LAYOUT)


def test_another_layout_is_refused_with_both_named(tmp_path: Path) -> None:
    arena = make(tmp_path)
    arena.close()
    other = KvLayout(num_layers=2, num_kv_heads=1, head_dim=2, kind="fake")
    with pytest.raises(ArenaError, match=r"layers=1.*layers=2"):
        Arena.open(arena.path, other)


def test_a_truncated_arena_is_refused(tmp_path: Path) -> None:
    arena = make(tmp_path)
    arena.close()
    os.truncate(arena.path, arena.path.stat().st_size - 1)
    with pytest.raises(ArenaError, match="cut short"):
        Arena.open(arena.path, LAYOUT)


def test_arenas_left_behind_are_found(tmp_path: Path) -> None:
    made = [make(tmp_path, epoch) for epoch in (1, 2)]

    assert [each.path for each in made] == old_arenas(tmp_path)
    for arena in made:
        arena.remove()
        arena.remove()
        arena.close()
    assert [] == old_arenas(tmp_path)


def test_closing_is_harmless_while_somebody_still_looks(tmp_path: Path) -> None:
    arena = make(tmp_path)
    view = arena.blocks[:4]
    arena.close()

    assert 0 == view[0]
