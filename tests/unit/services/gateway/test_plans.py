"""From a body to what the scheduler is asked."""

from typing import Any

import msgspec
import pytest

from slipstream.services.gateway.bodies import ChatBody, CompletionBody
from slipstream.services.gateway.errors import ApiError
from slipstream.services.gateway.fields import BodyReader
from slipstream.services.gateway.plans import Asking, Plan, plan_chat, plan_completion
from slipstream.shared.messages.generate import ChatMessage, GenerateRequest
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.model.fake_model import write_fake_model
from slipstream.shared.model.tokenizer import Tokenizer
from slipstream.shared.openai.fields import REFUSED

ASKING = Asking("req_1")
USER = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_fake_model(tmp_path_factory.mktemp("model") / "fake"))


@pytest.fixture
def chat(tokenizer: Tokenizer) -> Any:
    def read(asking: Asking = ASKING, **fields: Any) -> Plan:
        body = msgspec.json.encode({"messages": USER, **fields})
        return plan_chat(BodyReader().read(body, ChatBody), asking, tokenizer)

    return read


def completion(asking: Asking = ASKING, **fields: Any) -> Plan:
    body = msgspec.json.encode({"prompt": "Hello", **fields})
    return plan_completion(BodyReader().read(body, CompletionBody), asking)


def test_a_chat_is_asked_for_as_a_stream(chat: Any) -> None:
    plan = chat(temperature=0.5, top_p=0.9, seed=3, stop=["a"], user="somebody")

    assert [
        GenerateRequest(
            messages=[ChatMessage("user", "Hello")],
            stream=True,
            temperature=0.5,
            top_p=0.9,
            seed=3,
            stop=["a"],
            client_request_id="req_1",
        )
    ] == plan.requests
    assert (False, False, 1) == (plan.is_streamed, plan.has_usage, plan.num_choices)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
        ({}, None),
    ],
)
def test_the_newer_name_of_the_longest_answer_wins(
    chat: Any, fields: dict[str, int], wanted: int | None
) -> None:
    assert wanted == chat(**fields).requests[0].max_tokens


def test_a_developer_is_a_system(chat: Any) -> None:
    plan = chat(messages=[{"role": "developer", "content": "Be brief"}, *USER])

    assert ["system", "user"] == [each.role for each in plan.requests[0].messages]


@pytest.mark.parametrize(
    ("prompt", "texts", "ids"),
    [
        ("a", ["a"], [None]),
        (["a", "b"], ["a", "b"], [None, None]),
        ([1, 2], [None], [PackedInts([1, 2])]),
        ([[1], [2, 3]], [None, None], [PackedInts([1]), PackedInts([2, 3])]),
    ],
)
def test_each_prompt_is_a_request(prompt: Any, texts: list[Any], ids: list[Any]) -> None:
    requests = completion(prompt=prompt).requests

    assert texts == [request.prompt for request in requests]
    assert ids == [request.prompt_token_ids for request in requests]


@pytest.mark.parametrize(
    "prompt", [[], [""], [[]], ["a", 1], ["a", [1]], [1, [1]], ["a"] * 129, [-1], [2**32], [True]]
)
def test_prompts_that_are_none_are_refused(prompt: Any) -> None:
    with pytest.raises(ApiError) as raised:
        completion(prompt=prompt)

    assert (400, "prompt") == (raised.value.status, (raised.value.param or "")[:6])


@pytest.mark.parametrize("name", sorted(set(REFUSED) - {"suffix"}))
def test_known_fields_that_are_not_served_are_refused_by_name(chat: Any, name: str) -> None:
    for neutral in (None, *REFUSED[name]):
        assert chat(**{name: neutral}).requests
    if name == "add_special_tokens":
        return  # both of its values ask for what is done
    with pytest.raises(ApiError, match=name) as raised:
        chat(**{name: {"something": "else"}})

    assert (400, name) == (raised.value.status, raised.value.param)


def test_true_is_not_one(chat: Any) -> None:
    with pytest.raises(ApiError, match="length_penalty"):
        chat(length_penalty=True)


def test_an_unknown_field_is_warned_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    reader = BodyReader()
    for _ in range(3):
        reader.read(b'{"prompt": "a", "temprature": 1, "user": "x"}', CompletionBody)

    assert 1 == capsys.readouterr().out.count("temprature")


def test_a_field_of_a_wrong_type_is_named_with_its_place(chat: Any) -> None:
    with pytest.raises(ApiError) as raised:
        chat(messages=[*USER, {"role": "user", "content": 5}])

    assert "messages[1].content" == raised.value.param


@pytest.mark.parametrize("body", [b'{"model": "m"}', b"{}"])
def test_what_is_missing_is_named(body: bytes) -> None:
    with pytest.raises(ApiError, match="prompt: is missing") as raised:
        BodyReader().read(body, CompletionBody)

    assert "prompt" == raised.value.param


@pytest.mark.parametrize("n", [0, -1, 17, 10**9])
def test_so_many_choices_are_refused_before_anything_is_made_for_them(n: int) -> None:
    with pytest.raises(ApiError, match=r"must lie in \[1, 16\]"):
        completion(n=n)


def test_the_tenant_is_that_of_the_key() -> None:
    with_key = completion(Asking("r", "acme"), tenant="other").requests[0]
    without = completion(Asking("r"), tenant="other").requests[0]

    assert ("acme", "other") == (with_key.tenant, without.tenant)


def test_newer_names_of_constraints_are_understood() -> None:
    plan = completion(structured_outputs={"regex": "[ab]+", "json": None})

    assert "[ab]+" == plan.requests[0].guided_regex
    with pytest.raises(ApiError, match=r"structured_outputs\.grammar"):
        completion(structured_outputs={"grammar": "x"})


def test_an_echo_with_logprobs_can_not_be_streamed() -> None:
    assert [True] == [each.echo for each in completion(echo=True, logprobs=1).requests]
    with pytest.raises(ApiError, match="echo"):
        completion(echo=True, logprobs=1, stream=True)


@pytest.mark.parametrize(("deadline_ms", "timeout_s"), [(None, None), (2000, 7.0), (-1, None)])
def test_the_wait_is_a_little_longer_than_the_deadline(
    deadline_ms: int | None, timeout_s: float | None
) -> None:
    assert timeout_s == completion(deadline_ms=deadline_ms).timeout_s


def test_no_field_of_the_scheduler_is_forgotten() -> None:
    """A new one is offered over HTTP, or listed here with its reason."""
    known = set(ChatBody.__struct_fields__) | set(CompletionBody.__struct_fields__)
    # `prompt`; the answer has no place for it; where we ourselves listen.
    elsewhere = {"prompt_token_ids", "prompt_logprobs", "batch_inbox"}

    assert elsewhere == set(GenerateRequest.__struct_fields__) - known
