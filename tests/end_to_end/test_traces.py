"""One trace a request across the services, as a receiver that isn't ours sees it; and logs."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from . import client, stack, tap

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(120)]

_NUM_REQUESTS = 10
_MAX_NUM_SPANS = 16
_TOLERANCE_NS = 5_000_000  # clocks of one machine, read by several processes
_MIN_NUM_CHUNKS = 2
_NUM_CHUNKS = "slipstream.num_chunks"
_CONVERSATION = "messaging.message.conversation_id"
_SERVICES = {
    "remote": {"scheduler", "prefill", "kv", "draft", "decode"},
    "local": {"scheduler", "kv", "draft", "decode"},
}
# One span each of these ends last in its process.
_NAMES = {
    "remote": {"process generate", "process prefill", "process decode", "draft", "kv release"},
    "local": {"process generate", "process decode", "draft", "kv release"},
}


@pytest.mark.parametrize("route", ["remote", "local"])
async def test_each_of_ten_concurrent_requests_is_one_whole_trace(
    real_client: client.Client, trace_tap: tap.Tap, route: str
) -> None:
    request = {"prompt": "Rivers are", "max_tokens": 12, "ignore_eos": True, "route": route}

    asking = (real_client.ask({**request, "seed": seed}) for seed in range(_NUM_REQUESTS))
    answers = await asyncio.gather(*asking)

    trace_ids = [answer["trace_id"] for answer in answers]
    assert _NUM_REQUESTS == len(set(trace_ids))
    settling = (_settled(trace_tap, trace_id, _has(_NAMES[route])) for trace_id in trace_ids)
    for answer, spans in zip(answers, await asyncio.gather(*settling), strict=True):
        _check_trace(spans)
        assert _SERVICES[route] == trace_tap.services(answer["trace_id"])
        traces = trace_tap.traces_with(_CONVERSATION, answer["request_id"])
        assert {answer["trace_id"]} == traces


@pytest.mark.parametrize("route", ["remote", "local"])
async def test_a_prompt_is_computed_by_one_worker_alone(
    real_client: client.Client, trace_tap: tap.Tap, route: str
) -> None:
    """Of a handed over prompt decode computes no row: it reads the KV that prefill wrote."""
    # Several chunks of the default budget, none of them cached by the other route.
    request = {"prompt": f"{route}: " + "word " * 1200, "max_tokens": 4, "route": route}

    answer = await real_client.ask(request)

    assert route == answer["route"]
    spans = await _settled(trace_tap, answer["trace_id"], _has(_NAMES[route]))
    num_chunks = {span.name: span.attributes.get(_NUM_CHUNKS) for span in spans}
    assert (num_chunks["process decode"] == 0) == (route == "remote"), num_chunks
    computing = "process prefill" if route == "remote" else "process decode"
    assert num_chunks[computing] >= _MIN_NUM_CHUNKS, num_chunks


async def test_a_cancelled_request_is_one_whole_trace(
    real_client: client.Client, trace_tap: tap.Tap
) -> None:
    request = {"prompt": "Rivers are", "max_tokens": 400, "ignore_eos": True, "route": "remote"}

    async for message in real_client.messages(request):
        if "token_frame" == message["type"]:
            await real_client.cancel(message["request_id"])
        last = message

    assert ("finished", "abort") == (last["type"], last["finish_reason"])
    _check_trace(await _settled(trace_tap, last["trace_id"], _has(_NAMES["remote"])))


async def test_a_request_that_is_cancelled_during_prefill_is_one_whole_trace(
    real_client: client.Client, trace_tap: tap.Tap
) -> None:
    request = {"prompt": "word " * 3000, "max_tokens": 4, "route": "remote"}

    async for message in real_client.messages(request):
        if "accepted" == message["type"]:
            cancelled = await real_client.cancel(message["request_id"])
            trace_id = message["trace_id"]
        last = message

    assert cancelled["phase"] in ("waiting", "prefilling")
    assert last["type"] in ("finished", "failed")
    assert last.get("finish_reason", last.get("code")) in ("abort", "cancelled")
    _check_trace(await _settled(trace_tap, trace_id, _has({"process generate"})))


async def test_a_refused_request_is_one_trace_of_one_span(
    real_client: client.Client, trace_tap: tap.Tap
) -> None:
    failed = await real_client.ask({"prompt": "Hello", "max_tokens": -1})

    spans = await _settled(trace_tap, failed["trace_id"], _has({"process generate"}))

    assert ["process generate"] == [span.name for span in spans]
    _check_trace(spans)


async def test_a_trace_of_the_caller_goes_on_in_ours(
    real_client: client.Client, trace_tap: tap.Tap
) -> None:
    """The caller's span, which we never see, is the parent of our root."""
    trace_id, parent_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    inbox = real_client.connection.new_inbox()
    subscription = await real_client.connection.subscribe(inbox)
    payload = client.encode({"prompt": "Hello", "max_tokens": 4})

    await real_client.connection.publish(
        client.GENERATE.subject(),
        payload,
        reply=inbox,
        headers={"traceparent": f"00-{trace_id}-{parent_id}-01"},
    )
    answer = client.decode((await subscription.next_msg(60)).data)

    assert trace_id == answer["trace_id"]
    spans = await _settled(trace_tap, trace_id, _has({"process generate", "process decode"}))
    roots = [span for span in spans if span.name == "process generate"]
    assert [parent_id] == [span.parent_id for span in roots]


@pytest.mark.parametrize("route", ["remote", "local"])
async def test_logs_of_all_services_are_found_by_the_trace_id(
    real_client: client.Client, real_stack: stack.Stack, route: str
) -> None:
    answer = await real_client.ask({"prompt": "Hello", "max_tokens": 4, "route": route})
    wanted = {f"slipstream-{role}" for role in _SERVICES[route] - {"kv", "draft"}}

    def is_logged() -> bool:
        lines = _lines_of(real_stack, answer["trace_id"])
        is_ended = any(line["event"] == "request_ended" for line in lines)
        return is_ended and wanted <= {line["service"] for line in lines}

    assert await asyncio.to_thread(stack.wait_until, is_logged, 10)
    lines = _lines_of(real_stack, answer["trace_id"])
    assert {answer["request_id"]} == {line["request_id"] for line in lines}
    (canonical,) = (line for line in lines if line["event"] == "request_ended")
    assert 4 == canonical["num_output_tokens"]
    assert not any("Hello" in line for line in real_stack.lines), "a prompt was logged"


def _lines_of(running: stack.Stack, trace_id: str) -> list[stack.LogLine]:
    return [line for line in running.log if line.get("trace_id") == trace_id]


async def _settled(
    receiver: tap.Tap, trace_id: str, is_whole: Callable[[list[tap.Span]], bool]
) -> list[tap.Span]:
    return await asyncio.to_thread(receiver.settled, trace_id, is_whole)


def _has(names: set[str]) -> Callable[[list[tap.Span]], bool]:
    return lambda spans: names <= {span.name for span in spans}


def _check_trace(spans: Sequence[tap.Span]) -> None:
    """One root, everybody's parent there and begun before, and not too many."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans), "a span came twice"
    assert ["process generate"] == [span.name for span in spans if span.parent_id is None]
    assert len(spans) <= _MAX_NUM_SPANS, [span.name for span in spans]
    for span in spans:
        assert span.start_ns <= span.end_ns, span.name
        if span.parent_id is not None:
            assert span.parent_id in by_id, f"{span.name} is an orphan"
            assert span.start_ns >= by_id[span.parent_id].start_ns - _TOLERANCE_NS, span.name
