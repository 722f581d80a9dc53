"""OpenAI's own client over the whole stack on the real model."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from slipstream.shared.config import DEFAULT_MODEL
from tests.end_to_end import client, stack, tap

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(180)]

_ASK: Any = [{"role": "user", "content": "What is the capital of France?"}]  # Any: its own types
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_TOOL: Any = {  # Any: as above
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Tell the time in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 30}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
_OTHER_TOOL: Any = {"type": "function", "function": {"name": "stop", "parameters": {}}}


@pytest.fixture
async def api(real_stack: stack.Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{real_stack.http_url}/v1", api_key="any", max_retries=0, timeout=120
    ) as found:
        yield found


async def test_a_chat_is_answered(api: openai.AsyncOpenAI, real_client: client.Client) -> None:
    """With the very text that a NATS client is given for the same seed."""
    over_nats = await real_client.ask(
        {"messages": _ASK, "max_tokens": 24, "seed": 11, "temperature": 0.8}
    )

    answer = await api.chat.completions.create(
        model=DEFAULT_MODEL, messages=_ASK, max_tokens=24, seed=11, temperature=0.8
    )

    (choice,) = answer.choices
    assert over_nats["choices"][0]["text"] == choice.message.content
    assert over_nats["choices"][0]["finish_reason"] == choice.finish_reason
    assert answer.usage is not None
    assert (
        over_nats["usage"]["num_prompt_tokens"],
        over_nats["usage"]["num_output_tokens"],
    ) == (answer.usage.prompt_tokens, answer.usage.completion_tokens)
    assert ("chat.completion", DEFAULT_MODEL) == (answer.object, answer.model)
    assert {"seed": 11} == {key: getattr(choice, key) for key in ("seed",)}


def test_the_example_of_the_readme_prints_what_it_says(real_stack: stack.Stack) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(from openai.*?)```\n\nprints\n\n```\n(.*?)```", text, re.DOTALL)
    assert found is not None
    code, printed = found.groups()
    assert "http://127.0.0.1:8000" in code

    done = subprocess.run(
        [sys.executable, "-P", "-c", code.replace("http://127.0.0.1:8000", real_stack.http_url)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (0, printed, "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_streamed_chat_is_the_plain_one(
    api: openai.AsyncOpenAI, temperature: float
) -> None:
    fields: Any = {  # Any: the client's own types
        "model": DEFAULT_MODEL,
        "messages": _ASK,
        "max_tokens": 32,
        "seed": 5,
        "temperature": temperature,
    }
    plain = await api.chat.completions.create(**fields)

    stream = await api.chat.completions.create(
        **fields, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]

    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert plain.choices[0].message.content == said
    assert [] == chunks[-1].choices
    assert plain.usage is not None
    assert chunks[-1].usage is not None
    assert plain.usage.completion_tokens == chunks[-1].usage.completion_tokens


async def test_a_completion_is_continued(api: openai.AsyncOpenAI) -> None:
    answer = await api.completions.create(
        model=DEFAULT_MODEL, prompt="The capital of France is", max_tokens=6, temperature=0
    )
    many = await api.completions.create(
        model=DEFAULT_MODEL,
        prompt=["The capital of France is", "The capital of Italy is"],
        max_tokens=6,
        temperature=0,
    )

    assert "Paris" in answer.choices[0].text
    assert [answer.choices[0].text] == [many.choices[0].text]
    assert "Rome" in many.choices[1].text


async def test_a_stop_string_ends_an_answer(api: openai.AsyncOpenAI) -> None:
    fields: Any = {"model": DEFAULT_MODEL, "messages": _ASK, "max_tokens": 40, "temperature": 0}
    whole = await api.chat.completions.create(**fields)
    text = whole.choices[0].message.content or ""
    stop = text[8:12]

    stopped = await api.chat.completions.create(**fields, stop=[stop])

    assert text[: text.index(stop)] == stopped.choices[0].message.content
    assert "stop" == stopped.choices[0].finish_reason


async def test_choices_differ_and_each_can_be_had_again(api: openai.AsyncOpenAI) -> None:
    fields: Any = {"model": DEFAULT_MODEL, "messages": _ASK, "max_tokens": 12, "temperature": 1}
    answer = await api.chat.completions.create(**fields, n=3, seed=4)

    texts = [choice.message.content for choice in answer.choices]
    assert 3 == len(set(texts))
    seed: Any = answer.choices[2].seed  # type: ignore[attr-defined] # a field of ours
    again = await api.chat.completions.create(**fields, seed=seed)
    assert texts[2] == again.choices[0].message.content


async def test_logprobs_spell_the_answer(api: openai.AsyncOpenAI) -> None:
    answer = await api.chat.completions.create(
        model=DEFAULT_MODEL, messages=_ASK, max_tokens=8, logprobs=True, top_logprobs=3
    )

    (choice,) = answer.choices
    assert choice.logprobs is not None
    entries = choice.logprobs.content or []
    assert 8 == len(entries)
    assert choice.message.content == b"".join(bytes(each.bytes or []) for each in entries).decode()
    assert all(3 == len(each.top_logprobs) for each in entries)


async def test_a_schema_is_kept(api: openai.AsyncOpenAI) -> None:
    answer = await api.chat.completions.create(
        model=DEFAULT_MODEL,
        messages=[{"role": "user", "content": "Tell a joke"}],
        max_tokens=200,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": _SCHEMA, "strict": True},
        },
    )

    found = json.loads(answer.choices[0].message.content or "")
    assert {"name": str, "age": int} == {key: type(value) for key, value in found.items()}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_time"}}]
)
async def test_a_tool_is_called_the_same_plain_and_streamed(
    api: openai.AsyncOpenAI, choice: Any
) -> None:
    fields: Any = {
        "model": DEFAULT_MODEL,
        "messages": [{"role": "user", "content": "What time is it in Paris?"}],
        "tools": [_TOOL, _OTHER_TOOL] if choice == "required" else [_OTHER_TOOL, _TOOL],
        "tool_choice": choice,
        "max_tokens": 120,
        "temperature": 0,
    }
    plain = await api.chat.completions.create(**fields)
    stream = await api.chat.completions.create(**fields, stream=True)
    chunks = [chunk async for chunk in stream]

    (call,) = plain.choices[0].message.tool_calls or []
    assert ("tool_calls", None) == (
        plain.choices[0].finish_reason,
        plain.choices[0].message.content,
    )
    assert call.type == "function"
    assert call.function.name in ("get_time", "stop")
    if call.function.name == "get_time":
        assert isinstance(json.loads(call.function.arguments)["city"], str)
    deltas = [each for chunk in chunks for each in chunk.choices[0].delta.tool_calls or []]
    functions = [delta.function for delta in deltas if delta.function is not None]
    assert [call.function.name] == [each.name for each in functions if each.name]
    assert call.function.arguments == "".join(each.arguments or "" for each in functions)
    assert "tool_calls" == chunks[-1].choices[0].finish_reason
    assert not any(chunk.choices[0].delta.content for chunk in chunks)


async def test_the_result_of_a_tool_is_taken_up(api: openai.AsyncOpenAI) -> None:
    call: Any = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_time", "arguments": '{"city": "Paris"}'},
    }
    answer = await api.chat.completions.create(
        model=DEFAULT_MODEL,
        messages=[
            {"role": "user", "content": "What time is it in Paris?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "It is 12:30 in Paris."},
        ],
        max_tokens=24,
        temperature=0,
    )

    assert answer.choices[0].message.content


async def test_a_model_that_knows_no_tools_is_not_left_to_choose(api: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="tool_choice") as raised:
        await api.chat.completions.create(model=DEFAULT_MODEL, messages=_ASK, tools=[_TOOL])

    assert "tools" == raised.value.param


async def test_errors_are_those_of_the_client(api: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await api.chat.completions.create(model="gpt-9", messages=_ASK)
    with pytest.raises(openai.BadRequestError) as wrong:
        await api.chat.completions.create(model=DEFAULT_MODEL, messages=_ASK, temperature=5)
    with pytest.raises(openai.BadRequestError) as long:
        await api.completions.create(model=DEFAULT_MODEL, prompt="word " * 9000)

    assert "model_not_found" == unknown.value.code
    assert ("temperature", "invalid_request") == (wrong.value.param, wrong.value.code)
    assert "context_length_exceeded" == long.value.code


async def test_an_error_in_a_stream_is_raised(api: openai.AsyncOpenAI) -> None:
    stream = await api.completions.create(
        model=DEFAULT_MODEL,
        prompt="Rivers are",
        max_tokens=4000,
        stream=True,
        extra_body={"ignore_eos": True, "deadline_ms": 2500},
    )

    with pytest.raises(openai.APIError, match="deadline"):
        async for _ in stream:
            pass


async def test_models_are_listed(api: openai.AsyncOpenAI) -> None:
    models = await api.models.list()

    assert [DEFAULT_MODEL] == [model.id for model in models.data]
    assert DEFAULT_MODEL == (await api.models.retrieve(DEFAULT_MODEL)).id


async def test_the_gateway_is_the_root_of_one_trace(
    api: openai.AsyncOpenAI, trace_tap: tap.Tap
) -> None:
    raw = await api.chat.completions.with_raw_response.create(
        model=DEFAULT_MODEL, messages=_ASK, max_tokens=6
    )
    trace_id = raw.headers["x-slipstream-trace-id"]
    root_name = "POST /v1/chat/completions"

    def is_whole(spans: list[tap.Span]) -> bool:
        return {root_name, "process generate", "process decode"} <= {span.name for span in spans}

    spans = await asyncio.to_thread(trace_tap.settled, trace_id, is_whole)

    (root,) = (span for span in spans if span.parent_id is None)
    assert root_name == root.name
    assert [root.span_id] == [span.parent_id for span in spans if span.name == "process generate"]
    by_id = {span.span_id for span in spans}
    assert all(span.parent_id in by_id for span in spans if span is not root)
    assert len(spans) <= 16, [span.name for span in spans]
    assert (200, 6) == (
        root.attributes["http.response.status_code"],
        root.attributes["gen_ai.usage.output_tokens"],
    )


async def test_a_trace_of_the_client_goes_on_in_ours(
    api: openai.AsyncOpenAI, trace_tap: tap.Tap
) -> None:
    trace_id, parent_id = "1af7651916cd43dd8448eb211c80319c", "c7ad6b7169203331"
    await api.chat.completions.create(
        model=DEFAULT_MODEL,
        messages=_ASK,
        max_tokens=2,
        extra_headers={"traceparent": f"00-{trace_id}-{parent_id}-01"},
    )
    root_name = "POST /v1/chat/completions"

    def is_whole(spans: list[tap.Span]) -> bool:
        return {root_name, "process decode"} <= {span.name for span in spans}

    spans = await asyncio.to_thread(trace_tap.settled, trace_id, is_whole)

    assert [parent_id] == [span.parent_id for span in spans if span.name == root_name]
