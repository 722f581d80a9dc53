"""What is missing of a transfer, and when asking for it again ends."""

import pytest

from slipstream.shared.kv.transfer import progress as module
from slipstream.shared.kv.transfer.plane import (
    Deadline,
    FetchRequest,
    PlaneIdentity,
    TransferBrokenError,
    TransferTimeoutError,
)
from slipstream.shared.kv.transfer.progress import MAX_NUM_DAMAGED, Progress

IDENTITY = PlaneIdentity("receiver", 1, "layout", "model", block_bytes=4)
REQUEST = FetchRequest("t", "lease", [7, 8, 9], [70, 80, 90])


def places(num_blocks: int = 3, num_bytes: int = 4) -> list[memoryview]:
    return [memoryview(bytearray(num_bytes)) for _ in range(num_blocks)]


def test_next_question_asks_for_what_is_missing_only() -> None:
    progress = Progress(REQUEST, places(), IDENTITY)
    question = progress.next_question(Deadline(60))
    question.note(0, is_whole=True)
    question.note(1, is_whole=False)
    question.note(2, is_whole=True)
    progress.finish(question)
    again = progress.next_question(Deadline(60))

    assert ([8], [80]) == (again.fetch.block_ids, again.fetch.generations)

    again.note(0, is_whole=True)
    progress.finish(again)

    assert progress.is_complete
    assert (3, 12, 1) == (
        progress.fetched.num_blocks,
        progress.fetched.num_bytes,
        progress.fetched.num_resumes,
    )


def test_block_that_always_comes_damaged_is_given_up() -> None:
    progress = Progress(REQUEST, places(), IDENTITY)
    for _ in range(MAX_NUM_DAMAGED - 1):
        question = progress.next_question(Deadline(60))
        question.note(0, is_whole=False)
        progress.finish(question)
    question = progress.next_question(Deadline(60))
    question.note(0, is_whole=False)

    with pytest.raises(TransferBrokenError, match="block 7 came damaged"):
        progress.finish(question)


def test_questions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REQUEST_BYTES", 9)
    question = Progress(REQUEST, places(), IDENTITY).next_question(Deadline(60))

    assert [7, 8] == question.fetch.block_ids


def test_block_above_the_limit_is_asked_for_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REQUEST_BYTES", 3)
    question = Progress(REQUEST, places(), IDENTITY).next_question(Deadline(60))

    assert [7] == question.fetch.block_ids


def test_pauses_grow_until_something_comes() -> None:
    progress = Progress(REQUEST, places(), IDENTITY)
    question = progress.next_question(Deadline(60))
    pauses = [progress.pause_s() for _ in range(8)]
    question.note(0, is_whole=True)
    progress.keep(question)

    assert sorted(pauses) == pauses
    assert pauses[0] < pauses[-1] == pauses[-2]
    assert pauses[0] == progress.pause_s()


@pytest.mark.parametrize(
    "into",
    [
        places(2),
        places(4),
        places(3, num_bytes=5),
        [memoryview(bytes(4))] * 3,
    ],
    ids=["too few", "too many", "too large", "read-only"],
)
def test_places_that_do_not_fit_are_refused(into: list[memoryview]) -> None:
    with pytest.raises(ValueError, match="place"):
        Progress(REQUEST, into, IDENTITY)


def test_nothing_is_asked_after_the_deadline() -> None:
    with pytest.raises(TransferTimeoutError, match="within 0 s"):
        Progress(REQUEST, places(), IDENTITY).next_question(Deadline(0))
