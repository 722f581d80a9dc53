"""What reports tell: the difference since the last one, endings a few times."""

from slipstream.shared.ids import RequestId
from slipstream.shared.worker.report_book import NUM_REPEATS, ReportBook

ATTEMPT = (RequestId("r"), 1)


def take(book: ReportBook, *, is_full: bool = False) -> tuple[int, list[int]]:
    (held,), _ = book.take(is_full=is_full)
    return held.next_index, list(held.token_ids)


def test_a_report_brings_the_tokens_since_the_last() -> None:
    book = ReportBook()
    book.hold(ATTEMPT, "decoding", [1])
    book.emit(ATTEMPT, [2])

    assert (2, [1, 2]) == take(book)
    assert (2, []) == take(book)
    book.emit(ATTEMPT, [3, 4])
    assert (4, [3, 4]) == take(book)


def test_a_full_report_brings_all_of_them() -> None:
    book = ReportBook()
    book.hold(ATTEMPT, "decoding")
    book.emit(ATTEMPT, [1, 2])
    take(book)

    assert (2, [1, 2]) == take(book, is_full=True)


def test_a_new_phase_keeps_the_tokens() -> None:
    book = ReportBook()
    book.hold(ATTEMPT, "prefilling", [1])
    book.hold(ATTEMPT, "decoding")
    (held,), _ = book.take(is_full=False)

    assert ("decoding", 1, 1) == (held.phase, held.next_index, book.num_emitted(ATTEMPT))


def test_an_ending_is_told_a_few_times_and_then_forgotten() -> None:
    book = ReportBook()
    book.hold(ATTEMPT, "decoding")
    book.end(ATTEMPT, code="first")
    book.end(ATTEMPT, code="second")
    codes = [[each.code for each in book.take(is_full=False)[1]] for _ in range(NUM_REPEATS + 1)]

    assert [["first"]] * NUM_REPEATS + [[]] == codes
    assert 0 == book.num_held


def test_tokens_of_a_sequence_that_is_gone_are_no_error() -> None:
    book = ReportBook()
    book.emit(ATTEMPT, [1])

    assert 0 == book.num_emitted(ATTEMPT)
