"""The bytes of a stream, and the whole answer of the same events."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from slipstream.services.gateway.answers import Book, Head, whole_answer
from slipstream.services.gateway.chunks import DONE, ChunkWriter, Event, error_events
from slipstream.services.gateway.errors import ApiError
from slipstream.services.gateway.plans import Kind, Plan
from slipstream.services.gateway.token_texts import TokenTexts
from slipstream.services.gateway.tools import CALL_END
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.common import Accepted, FinishReason, Timings, Usage
from slipstream.shared.messages.generate import Finished, GenerateRequest, TokenFrame
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import TokenLogprobs
from slipstream.shared.model.fake_model import write_fake_model
from slipstream.shared.model.tokenizer import Tokenizer

ID = RequestId("abc")
HEAD = Head(id="cmpl-abc", created=5, model="m", fingerprint="fp_1", seed=9)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> TokenTexts:
    return TokenTexts(Tokenizer(write_fake_model(tmp_path_factory.mktemp("model") / "fake")))


def plan(kind: Kind = "text", **changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "requests": [GenerateRequest(prompt="?")],
        "is_streamed": True,
        "num_choices": 1,
        "has_usage": False,
        "has_usage_always": False,
        **changes,
    }
    return Plan(kind=kind, **fields)


def frame(index: int, text: str, choice: int = 0, **fields: Any) -> TokenFrame:
    return TokenFrame(
        request_id=ID,
        attempt=1,
        index=index,
        text_offset=index,
        token_ids=PackedInts([ord(each) for each in text] or [200]),
        text=text,
        choice=choice,
        **fields,
    )


def ending(num_tokens: int, reason: FinishReason = "stop", choice: int = 0) -> Finished:
    return Finished(
        request_id=ID,
        attempt=1,
        finish_reason=reason,
        usage=Usage(
            num_prompt_tokens=4,
            num_output_tokens=num_tokens,
            num_cached_tokens=2,
            num_tested_tokens=5,
            num_accepted_tokens=3,
        ),
        timings=Timings(),
        num_tokens=num_tokens,
        text_length=num_tokens,
        choice=choice,
        seed=9,
    )


def _id_of(texts: TokenTexts, text: str) -> int:
    return next(each for each in range(256) if texts.text_of(each) == text)


def stream(made: Plan, texts: TokenTexts, *batches: Sequence[Event]) -> list[Any]:
    """Return the chunks of a stream that ends well. Any: JSON."""
    book = Book(made, keeps_text=False)
    writer = ChunkWriter(book, HEAD, texts)
    written = b"".join(writer.events(batch) for batch in batches) + writer.last()
    assert written.endswith(DONE)
    *events, rest = written.removesuffix(DONE).split(b"\n\n")
    assert b"" == rest
    return [msgspec.json.decode(event.removeprefix(b"data: ")) for event in events]


def test_the_bytes_of_a_completion(texts: TokenTexts) -> None:
    writer = ChunkWriter(Book(plan(), keeps_text=False), HEAD, texts)

    piece = writer.events([(0, frame(0, 'a"'))])
    end = writer.events([(0, ending(2))])

    prefix = (
        b'data: {"id":"cmpl-abc","object":"text_completion","created":5,"model":"m",'
        b'"system_fingerprint":"fp_1","choices":[{"index":0,'
    )
    assert prefix + b'"text":"a\\"","logprobs":null,"finish_reason":null}]}\n\n' == piece
    assert (
        prefix + b'"text":"","logprobs":null,"finish_reason":"stop","stop_reason":null,'
        b'"seed":9}]}\n\n' == end
    )
    assert b"data: [DONE]\n\n" == writer.last()


def test_what_has_come_by_then_is_one_chunk_a_choice(texts: TokenTexts) -> None:
    """So a slow reader takes fewer and larger ones."""
    batch = [(0, frame(0, "a")), (0, frame(0, "x", 1)), (0, frame(1, "b")), (0, frame(1, "y", 1))]

    chunks = stream(plan(num_choices=2), texts, batch)

    assert [(0, "ab"), (1, "xy")] == [
        (choice["index"], choice["text"]) for chunk in chunks for choice in chunk["choices"]
    ]


def test_the_role_comes_with_the_first_words_of_each_choice(texts: TokenTexts) -> None:
    chunks = stream(
        plan("chat", num_choices=2),
        texts,
        [(0, Accepted(request_id=ID))],
        [(0, frame(0, ""))],  # half of a character: no text yet
        [(0, frame(1, "a")), (0, frame(0, "x", 1))],
        [(0, frame(2, "b")), (0, ending(3)), (0, ending(1, choice=1))],
    )

    assert [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "x"},
        {"content": "b"},
        {},
        {},
    ] == [chunk["choices"][0]["delta"] for chunk in chunks]


def test_an_answer_without_a_word_has_a_role_too(texts: TokenTexts) -> None:
    (chunk,) = stream(plan("chat"), texts, [(0, ending(0))])

    assert {"role": "assistant", "content": ""} == chunk["choices"][0]["delta"]
    assert "stop" == chunk["choices"][0]["finish_reason"]


def test_usage_is_null_until_the_last_chunk_has_it(texts: TokenTexts) -> None:
    *chunks, last = stream(plan(has_usage=True), texts, [(0, frame(0, "a"))], [(0, ending(1))])

    assert [None, None] == [chunk["usage"] for chunk in chunks]
    assert [] == last["choices"]
    assert {
        "prompt_tokens": 4,
        "completion_tokens": 1,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 3,
            "rejected_prediction_tokens": 2,
        },
    } == last["usage"]


def test_logprobs_wait_for_no_text(texts: TokenTexts) -> None:
    a, b = (_id_of(texts, each) for each in "ab")
    entry = TokenLogprobs(a, -0.5, [a, b], [-0.5, float("-inf")])
    (chunk,) = stream(plan("chat", has_logprobs=True), texts, [(0, frame(0, "", logprobs=[entry]))])

    (found,) = chunk["choices"][0]["logprobs"]["content"]
    assert ("a", -0.5, [97]) == (found["token"], found["logprob"], found["bytes"])
    assert [-0.5, -9999.0] == [each["logprob"] for each in found["top_logprobs"]]


def test_every_token_of_a_call_has_its_logprobs_in_the_stream(texts: TokenTexts) -> None:
    made = plan("chat", has_logprobs=True, call_form="whole")
    call = '{"name": "f", "arguments": {"a": 1}}'
    batches = [
        [(0, frame(at, letter, logprobs=[TokenLogprobs(at + 1, -1.0, [], [])]))]
        for at, letter in enumerate(call)
    ]
    chunks = stream(made, texts, *batches, [(0, ending(len(call)))])

    told = [
        each["choices"][0]["logprobs"]["content"]
        for each in chunks
        if each["choices"][0]["logprobs"] is not None
    ]
    assert len(call) == sum(map(len, told))


def test_a_stop_string_that_we_added_is_no_reason(texts: TokenTexts) -> None:
    ended = msgspec.structs.replace(ending(1), stop_reason=CALL_END)
    for form, reason in (("marked_once", None), ("marked", CALL_END)):
        made = plan("chat", call_form=form)
        *_, last = stream(made, texts, [(0, frame(0, "a")), (0, ended)])

        assert reason == last["choices"][0]["stop_reason"]


def test_columns_of_logprobs_go_on_where_the_last_chunk_ended(texts: TokenTexts) -> None:
    entries = [TokenLogprobs(_id_of(texts, each), -0.1, [], []) for each in "abc"]
    chunks = stream(
        plan(has_logprobs=True),
        texts,
        [(0, frame(0, "ab", logprobs=entries[:2]))],
        [(0, frame(2, "c", logprobs=entries[2:]))],
    )

    offsets = [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks]
    assert [[0, 1], [2]] == offsets


def test_choices_of_prompts_are_numbered_through(texts: TokenTexts) -> None:
    made = plan(requests=[GenerateRequest(prompt="a"), GenerateRequest(prompt="b")], num_choices=2)
    book = Book(made, keeps_text=True)
    for request in (0, 1):
        for choice in (0, 1):
            book.add(request, frame(0, "ax"[choice], choice))
            book.end(request, ending(1, choice=choice))

    answer = whole_answer(book, HEAD, texts)

    assert [(0, 0), (1, 1), (2, 2), (3, 3)] == list(
        enumerate(choice.index for choice in answer.choices)
    )
    # Each prompt counts once, whatever its choices.
    assert (8, 4, 4) == (
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
        answer.usage.prompt_tokens_details.cached_tokens,
    )


def test_a_cancelled_answer_is_an_error_not_an_answer(texts: TokenTexts) -> None:
    writer = ChunkWriter(Book(plan(), keeps_text=False), HEAD, texts)

    with pytest.raises(ApiError, match="cancelled"):
        writer.events([(0, ending(1, "abort"))])


def test_a_stream_that_fails_says_so_and_is_done() -> None:
    written = error_events(ApiError("worker_lost", "a worker is gone"))

    event, done, rest = written.split(b"\n\n")
    assert (b"data: [DONE]", b"") == (done, rest)
    assert {
        "message": "a worker is gone",
        "type": "server_error",
        "param": None,
        "code": "worker_lost",
    } == msgspec.json.decode(event.removeprefix(b"data: "))["error"]
