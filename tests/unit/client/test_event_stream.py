"""Server-sent events, cut anywhere."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.client import event_stream
from slipstream.client.event_stream import EventStream
from slipstream.shared.errors import ProtocolError

WHOLE = (
    ": a comment\n\n"
    "data: one\n\n"
    "event: message\r\nid: 3\r\ndata:two\r\n\r\n"
    'data: {"text": "\u2028\x85\x0b"}\n\n'
    "data: three,\ndata: in lines\n\n"
    "data: [DONE]\n\n"
    "data: never ended\n"
).encode()
EVENTS = ["one", "two", '{"text": "\u2028\x85\x0b"}', "three,\nin lines", "[DONE]"]


@given(places=st.lists(st.integers(0, len(WHOLE))))
def test_events_are_the_same_wherever_the_network_cuts_them(places: list[int]) -> None:
    ends = [*sorted(places), len(WHOLE)]
    events = EventStream()
    found = [
        event
        for start, end in zip([0, *ends[:-1]], ends, strict=True)
        for event in events.feed(WHOLE[start:end])
    ]

    assert EVENTS == [event.decode() for event in found]


@pytest.mark.parametrize("part", [b"x" * 40, b"data: 0123456789\n", b"data\n"])
def test_an_event_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch, part: bytes) -> None:
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", 100)
    events = EventStream()
    with pytest.raises(ProtocolError, match="more than 100 bytes"):
        [events.feed(part) for _ in range(40)]


def test_many_small_events_are_not_taken_for_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", 100)
    events = EventStream()

    assert 200 == sum(len(events.feed(b"data: 0123456789\n\n")) for _ in range(200))


def test_a_long_line_in_small_pieces_is_looked_at_once() -> None:
    """Else the time would grow with the square of the length: half a minute for these."""
    events = EventStream()
    began = time.process_time()
    for _ in range(70_000):
        assert [] == events.feed(b"x" * 100)

    assert time.process_time() - began < 5
