"""The note of the running step, as it is found after its process has died."""

import os
from pathlib import Path

import pytest

from slipstream.shared.ids import RequestId, WorkerId
from slipstream.shared.worker.step_note import StepNote, note_path, remove_notes, take_note

_WORKER = WorkerId("decode-1")


def test_who_dies_in_a_step_leaves_its_sequences(tmp_path: Path) -> None:
    path = note_path(tmp_path, _WORKER)
    if (child := os.fork()) == 0:
        with StepNote(tmp_path, _WORKER).during([(RequestId("a"), 1), (RequestId("bc"), 12)]):
            os.kill(os.getpid(), 9)
    os.waitpid(child, 0)

    assert 0o600 == path.stat().st_mode & 0o777
    assert [("a", 1), ("bc", 12)] == take_note(path)
    assert not path.exists()


def test_between_two_steps_the_note_is_empty(tmp_path: Path) -> None:
    note = StepNote(tmp_path, _WORKER)
    with pytest.raises(ZeroDivisionError), note.during([(RequestId("a"), 1)]):
        _ = 1 / 0
    note.close()

    assert [] == take_note(note_path(tmp_path, _WORKER))


def test_more_sequences_than_there_is_room_for_are_cut_between_two(tmp_path: Path) -> None:
    note = StepNote(tmp_path, _WORKER)
    attempts = [(RequestId(f"request-{number:06}"), number) for number in range(10_000)]
    with note.during(attempts):
        found = take_note(note_path(tmp_path, _WORKER))
    note.close()

    assert 2000 < len(found) < len(attempts)
    assert attempts[: len(found)] == found


@pytest.mark.parametrize("written", [b"", b"\xff\xff", b"\xff\xff\xff\xff\x00 \nx y\n"])
def test_no_file_however_spoilt_is_an_error(tmp_path: Path, written: bytes) -> None:
    path = note_path(tmp_path, _WORKER)
    path.write_bytes(written)

    assert [] == take_note(path)
    assert [] == take_note(path), "not there any more"


@pytest.mark.parametrize("name", ["../x", "a/b"])
def test_an_id_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no worker id"):
        note_path(tmp_path, WorkerId(name))


def test_notes_of_the_dead_are_removed(tmp_path: Path) -> None:
    StepNote(tmp_path, _WORKER).close()
    (tmp_path / "kv.lock").touch()
    remove_notes(tmp_path)

    assert ["kv.lock"] == [path.name for path in tmp_path.iterdir()]
