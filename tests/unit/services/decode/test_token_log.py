"""Frames joined are the text, from wherever a reader begins."""

from hypothesis import given
from hypothesis import strategies as st

from slipstream.services.decode.stopping import Ending
from slipstream.services.decode.stream import TokenLog
from slipstream.shared.messages.common import Timings, Usage
from slipstream.shared.messages.generate import Completion, Finished, TokenFrame
from slipstream.shared.messages.sampling import TokenLogprobs

from .decode_samples import make_job

USAGE = Usage(num_prompt_tokens=1, num_output_tokens=1)


def make_log(*, is_streamed: bool = True) -> TokenLog:
    return TokenLog(make_job([1], is_streamed=is_streamed))


def join(frames: list[TokenFrame]) -> tuple[list[int], str]:
    token_ids: list[int] = []
    text = ""
    for frame in frames:
        assert (len(token_ids), len(text)) == (frame.index, frame.text_offset)
        token_ids += frame.token_ids
        text += frame.text
    return token_ids, text


@given(
    steps=st.lists(st.lists(st.sampled_from(["", "a", "bc", "é"]), max_size=4), max_size=8),
    index=st.integers(-3, 40),
)
def test_frames_joined_are_the_text_also_from_any_index(steps: list[list[str]], index: int) -> None:
    log = make_log()
    frames = []
    for step in steps:
        for text in step:
            log.append(len(log.token_ids), text, None)
        frame = log.next_frame()
        assert bool(step) == (frame is not None)
        if frame is not None:
            frames.append(frame)

    said = [text for step in steps for text in step]
    assert (list(range(len(said))), "".join(said)) == join(frames)
    assert log.next_frame() is None
    resumed = log.frame_from(index)
    first = max(0, min(index, len(said)))
    assert (first, len("".join(said[:first]))) == (resumed.index, resumed.text_offset)
    assert (list(range(first, len(said))), "".join(said[first:])) == (
        list(resumed.token_ids),
        resumed.text,
    )


def test_a_keep_alive_says_where_the_stream_stands() -> None:
    log = make_log()
    log.append(1, "ab", None)
    log.next_frame()
    frame = log.keep_alive()

    assert (1, 2, 0, "") == (frame.index, frame.text_offset, len(frame.token_ids), frame.text)


def test_what_an_earlier_attempt_said_is_said_again_with_the_first_frame() -> None:
    """It may have been reported and not sent, when its worker died."""
    log = make_log()
    log.append(1, "a", None)
    log.restored()
    assert log.first_token_at is None
    log.append(2, "b", None)
    frame = log.next_frame()

    assert frame is not None
    assert (0, 0, "ab") == (frame.index, frame.text_offset, frame.text)
    assert log.next_frame() is None


def test_logprobs_travel_with_their_tokens() -> None:
    log = make_log()
    for token_id in (1, 2):
        log.append(token_id, "x", TokenLogprobs(token_id, -0.5, [], []))
        log.next_frame()

    assert [2] == [each.token_id for each in log.frame_from(1).logprobs or []]


def test_a_streamed_request_ends_with_finished_and_a_plain_one_with_all_of_it() -> None:
    for is_streamed in (True, False):
        log = make_log(is_streamed=is_streamed)
        log.append(7, "ab", None)
        answer = log.finish(Ending("stop", "c"), USAGE, Timings(), "fake")

        assert log.ending is not None
        assert (1, 2) == (log.ending.num_tokens, log.ending.text_length)
        if is_streamed:
            assert isinstance(answer, Finished)
        else:
            assert isinstance(answer, Completion)
            choice = answer.choices[0]
            assert ("ab", [7], "stop", "c") == (
                choice.text,
                list(choice.token_ids),
                choice.finish_reason,
                choice.stop_reason,
            )


def test_times_count_from_the_arrival_at_the_scheduler() -> None:
    log = make_log()
    log.append(1, "a", None)
    assert log.timings(0).tpot_ms is None, "a single token has no time between tokens"
    log.append(2, "b", None)
    timings = log.timings(3.0)

    assert timings.tpot_ms is not None
    assert 100 <= timings.ttft_ms <= timings.total_ms < 10_000
