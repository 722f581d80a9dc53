"""Who is asked whether anybody listens, and when nobody does any more."""

from typing import Any

from slipstream.services.scheduler.interest import (
    GONE_AFTER_S,
    MAX_NUM_PROBES,
    PROBE_S,
    InterestBook,
)
from slipstream.services.scheduler.records import RequestRecord

from .scheduler_samples import make_record


def stream(name: str = "r", **fields: Any) -> RequestRecord:
    record = make_record(name, **fields)
    record.client_inbox = f"_INBOX.{name}"
    return record


def plain(name: str = "r", client: str = "c") -> RequestRecord:
    record = make_record(name, is_streamed=False)
    record.client_inbox = f"_INBOX.{client}.{name}"
    return record


def ask(book: InterestBook, records: list[RequestRecord], seconds: int, *, listens: bool) -> None:
    """Ask once a second, from 0 or from where the last call ended."""
    for _ in range(seconds):
        now = book.__dict__.setdefault("now", 0.0)
        for probe in book.probes(records, now):
            if not listens:
                book.missed(probe.key, now + 0.1)
        book.__dict__["now"] = now + PROBE_S


def gone(book: InterestBook, records: list[RequestRecord]) -> list[str]:
    return [str(each.request_id) for each in book.gone(records, book.__dict__["now"])]


def test_a_stream_nobody_reads_is_noticed_after_five_seconds() -> None:
    book, records = InterestBook(), [stream()]
    ask(book, records, int(GONE_AFTER_S), listens=False)
    assert [] == gone(book, records)
    ask(book, records, 2, listens=False)

    assert ["r"] == gone(book, records)


def test_one_answered_probe_begins_the_wait_anew() -> None:
    book, records = InterestBook(), [stream()]
    ask(book, records, 5, listens=False)
    ask(book, records, 1, listens=True)
    ask(book, records, 5, listens=False)

    assert [] == gone(book, records)


def test_a_stream_is_asked_by_its_decode_worker_as_soon_as_it_decodes() -> None:
    book, record = InterestBook(), stream()
    ask(book, [record], 1, listens=False)
    record.phase = "decoding"

    assert [] == book.probes([record], 9.0)
    assert not book._watched
    assert not book._names


def test_plain_clients_are_asked_beside_their_inbox_once_for_all_requests() -> None:
    book, records = InterestBook(), [plain("a"), plain("b"), plain("x", "other")]
    probes = book.probes(records, 0.0)

    assert ["_INBOX.c.slipstream-probe", "_INBOX.other.slipstream-probe"] == [
        each.subject for each in probes
    ]
    ask(book, records, 2, listens=True)
    ask(book, records, 7, listens=False)
    assert ["a", "b", "x"] == gone(book, records)


def test_a_client_that_never_listened_beside_its_inbox_is_left_alone() -> None:
    book, records = InterestBook(), [plain()]
    ask(book, records, 20, listens=False)

    assert [] == gone(book, records)
    assert [] == book.probes(records, 30.0)


def test_an_inbox_without_a_beside_is_not_probed() -> None:
    record = plain()
    record.client_inbox = "_INBOX.alone"

    assert [] == InterestBook().probes([record], 0.0)


def test_many_clients_are_asked_in_turn_not_all_at_once() -> None:
    book = InterestBook()
    num_clients = 2 * MAX_NUM_PROBES + 100
    records = [stream(f"r{number}") for number in range(num_clients)]
    asked = [probe.subject for now in range(3) for probe in book.probes(records, float(now))]

    assert MAX_NUM_PROBES == len(book.probes(records, 9.0))
    assert num_clients == len(set(asked))


def test_a_probe_that_missed_counts_once_however_late_the_next_one_is() -> None:
    """With many clients each is asked less often: that makes no second miss of the first."""
    book = InterestBook()
    records = [stream(f"r{number}") for number in range(10 * MAX_NUM_PROBES)]
    num_probes, missed = 0, 0
    for second in range(20):
        assert [] == book.gone(records, float(second)), f"{num_probes} probes, {missed} missed"
        for probe in book.probes(records, float(second)):
            if probe.subject == "_INBOX.r0":
                num_probes += 1
                if num_probes <= 2:
                    book.missed(probe.key, second + 0.1)
                    book.missed(probe.key, second + 0.2)
                    missed += 1

    assert 2 == missed
    assert num_probes > missed, "it was asked on, and was there"


def test_of_many_clients_those_that_missed_a_probe_are_asked_first() -> None:
    """What takes long is to come round to a client; whether it is gone shows soon then."""
    book = InterestBook()
    records = [stream(f"r{number}") for number in range(10 * MAX_NUM_PROBES)]
    for second in range(12):
        if names := book.gone(records, float(second)):
            break
        for probe in book.probes(records, float(second)):
            if probe.subject == "_INBOX.r0":
                book.missed(probe.key, second + 0.1)

    assert ["r0"] == [each.request_id for each in names]
    assert second <= GONE_AFTER_S + 2


def test_after_trouble_absence_means_nothing() -> None:
    book, records = InterestBook(), [stream()]
    ask(book, records, 7, listens=False)
    book.forget()

    assert [] == gone(book, records)
    ask(book, records, 3, listens=False)
    assert [] == gone(book, records)
