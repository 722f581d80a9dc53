"""A text over several tries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.client.errors import RepeatDiffersError
from slipstream.client.seam import Seam


def cut(text: str, places: list[int]) -> list[str]:
    """Return the text in pieces."""
    ends = [*sorted({place % (len(text) + 1) for place in places}), len(text)]
    return [text[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


@given(
    text=st.text(max_size=40),
    tries=st.lists(st.tuples(st.lists(st.integers(0, 50)), st.integers(0, 20)), max_size=5),
)
def test_each_character_comes_once_however_often_and_wherever_a_stream_breaks(
    text: str, tries: list[tuple[list[int], int]]
) -> None:
    seam = Seam()
    seen = ""
    for places, num_pieces in tries:
        seam.begin()
        seen += "".join(map(seam.take, cut(text, places)[:num_pieces]))

        assert text.startswith(seen)
    seam.begin()
    seen += "".join(map(seam.take, cut(text, [])))
    seam.end()

    assert text == seen == seam.text


def test_a_repeat_that_says_something_else_is_an_error() -> None:
    seam = Seam()
    seam.begin()
    seam.take("The capital")
    seam.begin()
    seam.take("The ")
    with pytest.raises(RepeatDiffersError, match="after 11 characters"):
        seam.take("city")


def test_a_repeat_that_ends_too_early_is_an_error() -> None:
    seam = Seam()
    seam.begin()
    seam.take("The capital")
    seam.begin()
    seam.take("The")
    with pytest.raises(RepeatDiffersError):
        seam.end()
