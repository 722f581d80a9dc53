"""Known bugs of what comes in over HTTP: bodies, sizes, lists of prompts, ids, refusals by name."""

import asyncio
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.end_to_end import client, http_client, stack
from tests.end_to_end.known_bugs import recipes

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(180)]

_CONTEXT = 8192
_MAX_PROMPTS = 128
_MAX_GROWTH_KIB = 96 * 1024
_AIM_S = 3.0  # a hundred times what it takes
_GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
_HELLO = [{"role": "user", "content": "Say hello."}]
_MALFORMED = [
    b'{"model": "m", "max_tokens": 4,,}',
    b"",
    b'{"prompt": "Hel',
    b'{"prompt": "\xff\xfe"}',
    b'{"prompt": "\\ud800"}',
    b"[]",
    b"null",
    b"\x81\xa6prompt\xa5Hel",
    b"{" * 100_000,
    b'{"prompt": "Hi", "temperature": NaN}',
]
# It refuses systems, and two turns of a user in a row, in words of its own.
_STRICT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == "system" -%}{{ raise_exception("System role not supported") }}{%- endif -%}
{%- if (message.role == "user") != (loop.index0 % 2 == 0) -%}
{{ raise_exception("Conversation roles must alternate user/assistant") }}{%- endif -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.mark.parametrize("path", [http_client.TEXT, http_client.CHAT])
@pytest.mark.parametrize("body", _MALFORMED, ids=lambda body: repr(body[:24]))
async def test_b102_a_malformed_body_is_a_400_in_the_shape_of_errors(
    roomy_http: http_client.HttpClient, body: bytes, path: str
) -> None:
    answer = await roomy_http.post(path, body)

    assert 400 == answer.status
    assert "invalid_request_error" == answer.error["type"]
    assert "invalid_request" == answer.error["code"]


async def test_b102_another_content_type_changes_nothing(
    roomy_http: http_client.HttpClient,
) -> None:
    """Curl calls JSON a form: what the body is decides."""
    form = {"content-type": "application/x-www-form-urlencoded"}

    right = await roomy_http.chat({**_GREEDY, "messages": _HELLO}, form)
    wrong = await roomy_http.post(http_client.CHAT, b"prompt=Hello", form)

    assert 200 == right.status
    assert (400, "invalid_request") == (wrong.status, wrong.error["code"])


async def test_b104_errors_reach_the_official_client_as_what_they_are(
    roomy_http: http_client.HttpClient, roomy_stack: stack.Stack
) -> None:
    url = f"{http_client.url_of(roomy_stack)}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as official:
        for is_streamed in (False, True):
            with pytest.raises(openai.BadRequestError) as too_many:
                await official.chat.completions.create(
                    model="smollm2-135m",
                    messages=_HELLO,  # type: ignore[arg-type] # plain dictionaries
                    max_tokens=999_999,
                    stream=is_streamed,
                )
            with pytest.raises(openai.NotFoundError) as unknown:
                await official.chat.completions.create(
                    model="gpt-9",
                    messages=_HELLO,  # type: ignore[arg-type] # as above
                    stream=is_streamed,
                )
            with pytest.raises(openai.BadRequestError) as missing:
                await official.post(
                    "/chat/completions",
                    cast_to=object,
                    body={"model": "smollm2-135m", "stream": is_streamed},
                )

            assert ("invalid_request", "max_tokens") == (too_many.value.code, too_many.value.param)
            assert "999999" in str(too_many.value)
            assert ("model_not_found", "model") == (unknown.value.code, unknown.value.param)
            assert ("invalid_request", "messages") == (missing.value.code, missing.value.param)


async def test_b21_a_prompt_ten_times_the_context_is_refused_before_any_event(
    roomy_http: http_client.HttpClient,
) -> None:
    request = {"prompt": "word " * 10 * _CONTEXT}

    plain = await roomy_http.complete(request)
    found = await roomy_http.stream(http_client.TEXT, request)

    assert 400 == plain.status == found.status
    assert "context_length_exceeded" == plain.error["code"]
    assert str(_CONTEXT) in plain.error["message"]
    assert [plain.body] == found.chunks
    assert not found.is_done


@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
async def test_b30_choices_follow_the_order_of_the_prompts(
    roomy_http: http_client.HttpClient, *, is_streamed: bool
) -> None:
    prompts = ["One two three", "The sun is", "My name is", "Once upon a time"]
    request = {**_GREEDY, "logit_bias": {"0": -100}}
    alone = [(await roomy_http.complete({**request, "prompt": each})).text for each in prompts]

    if is_streamed:
        found = await roomy_http.stream(http_client.TEXT, {**request, "prompt": prompts})
        texts = [""] * len(prompts)
        for piece in found.pieces:
            texts[piece["index"]] += piece["text"]
        assert found.is_done
        assert len(prompts) == len(found.endings)
    else:
        answer = await roomy_http.complete({**request, "prompt": prompts})
        texts = [choice["text"] for choice in answer.body["choices"]]
        assert list(range(len(prompts))) == [each["index"] for each in answer.body["choices"]]
        assert len(prompts) * 12 == answer.body["usage"]["completion_tokens"]

    assert alone == texts


async def test_b30_a_hundred_thousand_prompts_are_refused_at_once(
    roomy_http: http_client.HttpClient, roomy_stack: stack.Stack
) -> None:
    pid = roomy_stack.pid("gateway")
    before_kib = recipes.peak_kib(pid)
    began_s = time.monotonic()

    refused = await roomy_http.complete({**_GREEDY, "prompt": ["word"] * 100_000})

    assert time.monotonic() - began_s < _AIM_S
    assert (400, "prompt") == (refused.status, refused.error["param"])
    assert str(_MAX_PROMPTS) in refused.error["message"]
    assert recipes.peak_kib(pid) - before_kib < _MAX_GROWTH_KIB


async def test_b108_an_unknown_field_is_ignored_and_warned_about_once(
    roomy_http: http_client.HttpClient, roomy_stack: stack.Stack
) -> None:
    request = {**_GREEDY, "messages": _HELLO}
    plain = await roomy_http.chat(request)

    for _ in range(3):
        extended = await roomy_http.chat({**request, "temprature_http": 0.1, "foo": [1]})
        assert plain.text == extended.text

    def warnings() -> list[stack.LogLine]:
        return [line for line in roomy_stack.log if line.get("field") == "temprature_http"]

    assert await asyncio.to_thread(stack.wait_until, lambda: bool(warnings()), 20)
    assert ["unknown_field_ignored"] == [line["event"] for line in warnings()]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_of", 3),
        ("adapter", "poet"),
        ("speculation", "medusa"),
        ("suffix", "the end."),
        ("functions", [{"name": "get_time"}]),
        ("use_beam_search", True),
        ("prompt_logprobs", 1),
        ("store", True),
    ],
)
async def test_b108_known_fields_that_cannot_be_honoured_are_refused_by_name(
    roomy_http: http_client.HttpClient, field: str, value: object
) -> None:
    for path, source in (
        (http_client.CHAT, {"messages": _HELLO}),
        (http_client.TEXT, {"prompt": "Once"}),
    ):
        refused = await roomy_http.post(path, client.encode({**_GREEDY, **source, field: value}))
        assert (400, field) == (refused.status, refused.error["param"]), refused.body


async def test_b109_one_name_of_a_client_for_two_requests_is_echoed_and_no_key(
    roomy_http: http_client.HttpClient,
) -> None:
    chats = [[{"role": "user", "content": f"Count to {number}."}] for number in ("ten", "five")]
    alone = [await roomy_http.chat({**_GREEDY, "messages": chat}) for chat in chats]
    named = {"x-request-id": "mine"}

    answers = await asyncio.gather(
        *(
            roomy_http.chat({**_GREEDY, "messages": chat, "request_id": "mine"}, named)
            for chat in chats
        )
    )

    assert [each.text for each in alone] == [each.text for each in answers]
    assert {"mine"} == {each.headers["x-request-id"] for each in answers}
    assert 4 == len({each.body["id"] for each in (*alone, *answers)})


async def test_b109_a_name_can_be_used_again_after_its_first_client_left(
    roomy_http: http_client.HttpClient,
) -> None:
    body = {**_GREEDY, "request_id": "mine", "client_request_id": "mine", "messages": _HELLO}
    async with roomy_http.streaming(http_client.CHAT, {**body, "max_tokens": 2000}) as chunks:
        await anext(chunks)

    again = await roomy_http.chat(body)

    assert (await roomy_http.chat({**_GREEDY, "messages": _HELLO})).text == again.text


@pytest.fixture(scope="module")
def strict_stack(
    model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Any:  # Any: a generator of a stack
    """The real model with a template that refuses."""
    directory = tmp_path_factory.mktemp("strict") / "strict-model"
    directory.mkdir()
    for each in model_dir.iterdir():
        if each.name != "chat_template.jinja":
            (directory / each.name).symlink_to(each)
    (directory / "chat_template.jinja").write_text(_STRICT_TEMPLATE, encoding="utf-8")
    arguments = ["--model", str(directory), "--format", "float32", "--kv-memory", "64MiB"]
    with stack.running(arguments, tmp_path_factory.mktemp("run")) as started:
        yield started


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([{"role": "system", "content": "Be brief."}, *_HELLO], "System role not supported"),
        ([*_HELLO, *_HELLO], "Conversation roles must alternate user/assistant"),
        ([], "is empty"),
    ],
    ids=["system", "two in a row", "none"],
)
async def test_b106_what_a_template_refuses_is_the_client_s_error_in_its_words(
    strict_stack: stack.Stack, messages: list[dict[str, str]], said: str
) -> None:
    async with http_client.connected(http_client.url_of(strict_stack)) as asking:
        refused = await asking.chat({**_GREEDY, "messages": messages})
        found = await asking.stream(http_client.CHAT, {**_GREEDY, "messages": messages})
        served = await asking.chat({**_GREEDY, "messages": _HELLO})

    assert (400, "messages") == (refused.status, refused.error["param"])
    assert said in refused.error["message"]
    assert [refused.body] == found.chunks
    assert 200 == served.status
