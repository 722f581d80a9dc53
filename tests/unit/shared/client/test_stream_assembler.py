"""The assembler gives every index and every character exactly once, whatever frames come."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.shared.client.stream_assembler import StreamAssembler
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.common import Timings, Usage
from slipstream.shared.messages.generate import Finished, TokenFrame
from slipstream.shared.messages.packed import PackedInts

# Token i is 100 + i. Some tokens add nothing yet: half of a character, or a held-back stop string.
PIECES = ["Pa", "ris", "", " is", " the", "", "", " 🗼", "!"]
OFFSETS = [0, *itertools.accumulate(len(piece) for piece in PIECES)]
TEXT = "".join(PIECES)
TOKEN_IDS = [100 + index for index in range(len(PIECES))]


def frame(start: int, end: int, *, attempt: int = 1, choice: int = 0) -> TokenFrame:
    return TokenFrame(
        request_id=RequestId("r"),
        attempt=attempt,
        index=start,
        text_offset=OFFSETS[start],
        token_ids=PackedInts(TOKEN_IDS[start:end]),
        text="".join(PIECES[start:end]),
        choice=choice,
    )


def ending(num_tokens: int, text_length: int) -> Finished:
    return Finished(
        request_id=RequestId("r"),
        attempt=1,
        finish_reason="stop",
        usage=Usage(num_prompt_tokens=1, num_output_tokens=num_tokens),
        timings=Timings(),
        num_tokens=num_tokens,
        text_length=text_length,
    )


def test_frames_in_order_add_up() -> None:
    stream = StreamAssembler()

    pieces = [stream.take(frame(index, index + 1)) for index in range(len(PIECES))]

    assert PIECES == pieces
    assert (TEXT, TOKEN_IDS) == (stream.text, stream.token_ids)
    assert stream.is_complete(ending(len(PIECES), len(TEXT)))


def test_a_frame_that_comes_twice_adds_nothing() -> None:
    stream = StreamAssembler()
    stream.take(frame(0, 2))

    assert "" == stream.take(frame(0, 2))
    assert "Paris" == stream.text


def test_an_overlap_is_cut_by_index_and_offset() -> None:
    """Frames of another attempt are cut elsewhere: its batch had other steps."""
    stream = StreamAssembler()
    stream.take(frame(0, 4, attempt=1))

    assert " the" == stream.take(frame(2, 6, attempt=2))
    assert TOKEN_IDS[:6] == stream.token_ids


def test_a_gap_is_seen_and_nothing_of_it_is_taken() -> None:
    stream = StreamAssembler()
    stream.take(frame(0, 1))

    assert stream.take(frame(2, 4)) is None
    assert ("Pa", 1) == (stream.text, stream.next_index)


def test_a_missing_tail_of_text_is_a_gap_too() -> None:
    """The indices fit, the offset does not: characters would be lost."""
    stream = StreamAssembler()
    stream.take(frame(0, 1))
    later = TokenFrame(
        request_id=RequestId("r"),
        attempt=1,
        index=1,
        text_offset=OFFSETS[2],
        token_ids=PackedInts([101]),
        text="x",
    )

    assert stream.take(later) is None


def test_a_keep_alive_ahead_of_us_shows_the_gap() -> None:
    """Frames can get lost before a pause; the keep-alive says how far the stream is."""
    stream = StreamAssembler()
    stream.take(frame(0, 2))

    assert "" == stream.take(frame(2, 2))
    assert stream.take(frame(4, 4)) is None


def test_text_without_tokens_is_taken() -> None:
    """What was held back for a stop string comes when the end shows that it was none."""
    stream = StreamAssembler()
    stream.take(frame(0, 2))
    held_back = TokenFrame(
        request_id=RequestId("r"),
        attempt=1,
        index=2,
        text_offset=OFFSETS[2],
        token_ids=PackedInts(),
        text=" END",
    )

    assert " END" == stream.take(held_back)
    assert stream.is_complete(ending(2, len("Paris END")))


def test_frames_of_an_earlier_attempt_that_come_late_are_cut() -> None:
    stream = StreamAssembler()

    taken = [
        stream.take(frame(0, 2, attempt=1)),
        stream.take(frame(0, 5, attempt=2)),
        stream.take(frame(2, 4, attempt=1)),
        stream.take(frame(5, 9, attempt=2)),
    ]

    assert ["Paris", " is the", "", " 🗼!"] == taken
    assert (TEXT, TOKEN_IDS) == (stream.text, stream.token_ids)


def test_frames_of_another_choice_are_not_ours() -> None:
    stream = StreamAssembler()

    assert "" == stream.take(frame(3, 4, choice=1))
    assert 0 == stream.next_index


@pytest.mark.parametrize(
    ("num_tokens", "text_length", "is_complete"),
    [(2, 5, True), (3, 5, False), (2, 6, False), (0, 0, True)],
)
def test_an_ending_is_complete_when_nothing_before_it_is_missing(
    num_tokens: int, text_length: int, *, is_complete: bool
) -> None:
    stream = StreamAssembler()
    stream.take(frame(0, 2))

    assert is_complete == stream.is_complete(ending(num_tokens, text_length))


@given(
    st.lists(
        st.tuples(st.integers(0, len(PIECES)), st.integers(0, len(PIECES))).map(sorted),
        max_size=40,
    )
)
def test_any_order_of_frames_gives_a_prefix_of_the_text(spans: list[list[int]]) -> None:
    """Duplicates, overlaps, gaps and disorder: what is there is always right, each index once."""
    stream = StreamAssembler()

    pieces = [stream.take(frame(start, end)) for start, end in spans]

    assert TEXT.startswith(stream.text)
    assert TOKEN_IDS[: stream.next_index] == stream.token_ids
    assert OFFSETS[stream.next_index] == stream.text_length == len(stream.text)
    assert stream.text == "".join(piece or "" for piece in pieces)
    # A frame that begins where we are is always taken.
    rest = stream.take(frame(stream.next_index, len(PIECES)))
    assert rest is not None
    assert TEXT == stream.text
