"""Our answers as bodies of the OpenAI API."""

import pytest

from slipstream.shared.ids import RequestId
from slipstream.shared.messages.common import Failed, Timings, Usage
from slipstream.shared.messages.generate import Choice, Completion
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import TokenLogprobs
from slipstream.shared.openai.batch_answers import answer_body, error_body
from slipstream.shared.openai.statuses import status_of

LOGPROBS = [TokenLogprobs(7, -0.5, [7, 8], [-0.5, -2.0])]


def completion(*, logprobs: list[TokenLogprobs] | None = None) -> Completion:
    return Completion(
        request_id=RequestId("r"),
        attempt=1,
        choices=[
            Choice(text="Hi", token_ids=PackedInts([7]), finish_reason="length", logprobs=logprobs),
            Choice(text="Ho", token_ids=PackedInts([8]), finish_reason="stop", index=1),
        ],
        usage=Usage(
            num_prompt_tokens=5,
            num_output_tokens=2,
            num_cached_tokens=4,
            num_tested_tokens=3,
            num_accepted_tokens=1,
        ),
        timings=Timings(),
        model="m",
        numerics="int8",
    )


def test_a_chat_has_messages() -> None:
    body = answer_body("/v1/chat/completions", completion(), 99)

    assert ("chatcmpl-r", "chat.completion", 99, "m", "int8") == (
        *(body["id"], body["object"], body["created"], body["model"]),
        body["system_fingerprint"],
    )
    assert {
        "index": 0,
        "message": {"role": "assistant", "content": "Hi", "refusal": None},
        "logprobs": None,
        "finish_reason": "length",
    } == body["choices"][0]
    assert (1, "Ho", "stop") == (
        body["choices"][1]["index"],
        body["choices"][1]["message"]["content"],
        body["choices"][1]["finish_reason"],
    )


def test_a_completion_has_texts() -> None:
    body = answer_body("/v1/completions", completion(), 99)

    assert ("cmpl-r", "text_completion") == (body["id"], body["object"])
    assert ["Hi", "Ho"] == [each["text"] for each in body["choices"]]


def test_usage_tells_of_cached_tokens_and_drafts() -> None:
    assert {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {
            "accepted_prediction_tokens": 1,
            "rejected_prediction_tokens": 2,
        },
    } == answer_body("/v1/completions", completion(), 99)["usage"]


def test_logprobs_name_tokens_by_their_ids() -> None:
    chat = answer_body("/v1/chat/completions", completion(logprobs=LOGPROBS), 99)
    text = answer_body("/v1/completions", completion(logprobs=LOGPROBS), 99)

    (content,) = chat["choices"][0]["logprobs"]["content"]
    assert ("token_id:7", -0.5) == (content["token"], content["logprob"])
    assert ["token_id:7", "token_id:8"] == [each["token"] for each in content["top_logprobs"]]
    assert {
        "tokens": ["token_id:7"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"token_id:7": -0.5, "token_id:8": -2.0}],
        "text_offset": [],
    } == text["choices"][0]["logprobs"]


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("invalid_request", 400, "invalid_request_error"),
        ("model_not_found", 404, "invalid_request_error"),
        ("message_too_large", 413, "invalid_request_error"),
        ("overloaded", 429, "rate_limit_error"),
        ("no_workers", 503, "server_error"),
        ("deadline_exceeded", 504, "server_error"),
        ("worker_lost", 503, "server_error"),
    ],
)
def test_an_error_has_the_status_of_its_code(code: str, status: int, kind: str) -> None:
    failed = Failed(code=code, message="why", field="top_p")

    assert status == status_of(failed.code)
    assert {"message": "why", "type": kind, "param": "top_p", "code": code} == error_body(failed)[
        "error"
    ]
