"""The client over a bus, against a scripted stack in memory."""

import asyncio
from typing import Any

import pytest

from slipstream.client import (
    AsyncClient,
    ClientClosedError,
    ConfigurationError,
    DeadlineExceededError,
    NoSchedulerError,
    RepeatDiffersError,
    RequestFailedError,
    UnfinishedStreamError,
    nats_transport,
)
from slipstream.client.nats_transport import BusTransport
from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.messages.codec import decode_request, encode
from slipstream.shared.messages.common import Failed, Timings, Usage
from slipstream.shared.messages.generate import ChatMessage, Choice, Completion
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.submission import body_digest, result_key

from .scripted_stack import (
    ACCEPTED,
    ID,
    LOST,
    QUICK,
    REFUSED,
    REST,
    WORDS,
    ScriptedStack,
    finished,
    frames,
    whole,
)

TEXT = "".join(WORDS)


def client_of(stack: ScriptedStack, timeout_s: float = 5.0) -> AsyncClient:
    return AsyncClient(transport=stack.transport(), retries=QUICK, timeout_s=timeout_s)


async def test_an_answer_is_whole() -> None:
    stack = ScriptedStack(whole(*WORDS))
    async with client_of(stack) as client:
        answer = await client.generate("Tell me", max_tokens=4, temperature=0.5)

    assert (TEXT, [0, 1, 2, 3], "stop", 7) == (
        answer.text,
        answer.token_ids,
        answer.finish_reason,
        answer.seed,
    )
    (request,) = stack.requests
    assert ("Tell me", 4, 0.5, True) == (
        request.prompt,
        request.max_tokens,
        request.temperature,
        request.stream,
    )
    assert 5000 < (request.deadline_ms or 0) <= 6000
    assert ([], []) == (stack.cancels, stack.inboxes)


async def test_a_chat_sends_messages() -> None:
    stack = ScriptedStack(whole("hello"))
    async with client_of(stack) as client:
        answer = await client.chat([{"role": "user", "content": "hi"}], seed=3)

    assert "hello" == answer.text
    assert [ChatMessage(role="user", content="hi")] == stack.requests[0].messages
    assert 3 == stack.requests[0].seed


async def test_a_stream_yields_text_as_it_comes_and_has_an_answer_at_its_end() -> None:
    stack = ScriptedStack(whole(*WORDS))
    async with client_of(stack) as client, client.stream("Tell me") as stream:
        with pytest.raises(UnfinishedStreamError, match="read it to its end"):
            _ = stream.answer
        pieces = [piece async for piece in stream]
        again = [piece async for piece in stream]

    assert (WORDS, []) == (pieces, again)
    assert (TEXT, False, 0) == (stream.answer.text, stream.is_cancelled, stream.num_retries)


async def test_a_gap_is_filled_while_the_reader_is_busy() -> None:
    first, second, third, fourth = frames(*WORDS)
    stack = ScriptedStack(
        [ACCEPTED, first, third, fourth], [second, third, fourth, finished(*WORDS)]
    )
    async with client_of(stack) as client, client.stream("Tell me") as stream:
        await asyncio.sleep(0.1)
        assert 1 == len(stack.resumes)
        assert TEXT == (await stream.read()).text


async def test_leaving_a_stream_cancels_its_request_and_says_so() -> None:
    stack = ScriptedStack([ACCEPTED, *frames(*WORDS)])
    async with client_of(stack) as client:
        async with client.stream("Tell me") as stream:
            async for _ in stream:
                break

        assert stream.is_cancelled
        assert [ID] == [cancel.request_id for cancel in stack.cancels]
        assert [] == stack.inboxes
        with pytest.raises(ClientClosedError):
            await stream.read()


async def test_an_error_in_the_block_cancels_too_and_is_passed_on() -> None:
    stack = ScriptedStack([ACCEPTED, *frames(*WORDS)])
    async with client_of(stack) as client:
        with pytest.raises(ZeroDivisionError):
            await _fail_in_the_middle(client)

        assert [ID] == [cancel.request_id for cancel in stack.cancels]


async def _fail_in_the_middle(client: AsyncClient) -> None:
    async with client.stream("Tell me") as stream:
        async for _ in stream:
            raise ZeroDivisionError


async def test_a_cancelled_task_cancels_its_request() -> None:
    stack = ScriptedStack([ACCEPTED])
    async with client_of(stack) as client:
        task = asyncio.create_task(client.generate("Tell me"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert [ID] == [cancel.request_id for cancel in stack.cancels]


async def test_a_cancel_waits_for_the_id_that_is_on_its_way() -> None:
    """Who leaves within a moment of asking must not leave a request behind."""
    stack = ScriptedStack()
    async with client_of(stack) as client:
        async with client.stream("Tell me"):
            await asyncio.sleep(0.01)
            stack_bus, inbox = stack._bus, stack.inboxes[0].pattern
            later = asyncio.get_running_loop().call_later(
                0.1, lambda: asyncio.ensure_future(stack_bus.publish(inbox, encode(ACCEPTED)))
            )

        assert later.when() < asyncio.get_running_loop().time()
        assert [ID] == [cancel.request_id for cancel in stack.cancels]


async def test_a_refusal_with_a_time_is_tried_again_after_it() -> None:
    stack = ScriptedStack([REFUSED], [REFUSED], whole(*WORDS))
    began_s = asyncio.get_running_loop().time()
    async with client_of(stack) as client, client.stream("Tell me") as stream:
        answer = await stream.read()

    assert (TEXT, 2) == (answer.text, stream.num_retries)
    assert asyncio.get_running_loop().time() - began_s >= 0.04
    assert 1 == len({request.seed for request in stack.requests}), "a repeat is the same request"


async def test_a_time_beyond_the_deadline_is_not_waited_for() -> None:
    late = Failed(code="overloaded", message="full", retry_after_ms=60_000)
    async with client_of(ScriptedStack([late])) as client:
        with pytest.raises(RequestFailedError) as raised:
            await client.generate("Tell me", timeout_s=1)

    assert ("overloaded", 60.0) == (raised.value.code, raised.value.retry_after_s)


async def test_tries_are_counted() -> None:
    stack = ScriptedStack(*[[REFUSED]] * 10)
    async with client_of(stack) as client:
        with pytest.raises(RequestFailedError, match="full"):
            await client.generate("Tell me")

    assert 1 + QUICK.max_num_retries == len(stack.requests)


async def test_an_error_of_the_request_is_not_tried_again() -> None:
    invalid = Failed(code="invalid_request", message="top_k: too low", field="top_k")
    stack = ScriptedStack([invalid])
    async with client_of(stack) as client:
        with pytest.raises(RequestFailedError) as raised:
            await client.generate("Tell me", top_k=-3)

    assert ("invalid_request", "top_k") == (raised.value.code, raised.value.field)
    assert 1 == len(stack.requests)


async def test_a_scheduler_may_come_late() -> None:
    stack = ScriptedStack(whole(*WORDS))
    transport = stack.transport()
    await transport.open()
    generate = stack.broker.subscriptions.pop(0) if stack.broker else None
    assert generate is not None
    client = AsyncClient(transport=transport, retries=QUICK)
    task = asyncio.create_task(client.generate("Tell me"))
    await asyncio.sleep(0.005)
    generate.broker.subscriptions.append(generate)

    assert TEXT == (await task).text
    await client.close()


async def test_no_scheduler_is_an_error_with_a_remedy() -> None:
    async def connect() -> Bus:
        return MemoryBus()

    async with AsyncClient(transport=BusTransport(connect, "memory"), retries=QUICK) as client:
        with pytest.raises(NoSchedulerError, match="at memory; start one with `slipstream up`"):
            await client.generate("Tell me")


async def test_a_stream_whose_worker_dies_is_repeated_and_goes_on_where_it_was() -> None:
    """Also where the repeat is cut into other pieces."""
    stack = ScriptedStack(
        [ACCEPTED, *frames(*WORDS[:2]), REST, LOST],
        [ACCEPTED, *frames("U", "nder t"), REST, LOST],
        whole("Under", " the b", "ridge"),
    )
    async with client_of(stack) as client, client.stream("Tell me") as stream:
        pieces = [piece async for piece in stream]

    assert ["Un", "der", " t", "he b", "ridge"] == pieces
    assert (TEXT, 2) == (stream.answer.text, stream.num_retries)


async def test_a_repeat_that_says_something_else_is_no_answer() -> None:
    stack = ScriptedStack([ACCEPTED, *frames(*WORDS[:2]), REST, LOST], whole("Over", " it"))
    async with client_of(stack) as client, client.stream("Tell me") as stream:
        with pytest.raises(RepeatDiffersError):
            await stream.read()

    assert "Under" == stream.text


async def test_what_was_sampled_by_rejection_is_not_repeated() -> None:
    """Its tokens depend on the drafts too."""
    stack = ScriptedStack([ACCEPTED, *frames(*WORDS[:2]), REST, LOST], whole(*WORDS))
    async with client_of(stack) as client:
        with pytest.raises(RequestFailedError, match="decode-1 is gone"):
            await client.generate("Tell me", speculation_mode="rejection")

    assert 1 == len(stack.requests)


async def test_a_request_that_nobody_speaks_of_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scheduler died with it, or the server with the message."""
    monkeypatch.setattr(nats_transport, "UNHEARD_S", 0.05)
    stack = ScriptedStack([], whole(*WORDS))
    async with client_of(stack) as client:
        assert TEXT == (await client.generate("Tell me")).text

    assert (2, []) == (len(stack.requests), stack.inboxes)


async def test_a_request_that_waits_is_not_taken_for_a_lost_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nats_transport, "UNHEARD_S", 0.05)
    stack = ScriptedStack([ACCEPTED], whole(*WORDS)[1:])
    async with client_of(stack) as client:
        assert TEXT == (await client.generate("Tell me")).text

    assert (1, 1) == (len(stack.requests), len(stack.resumes))


async def test_a_stream_that_is_not_known_any_more_is_sent_again() -> None:
    unknown = Failed(code="not_found", message="no such request here")
    first, _, third, _ = frames(*WORDS)
    stack = ScriptedStack([ACCEPTED, first, third], [unknown], whole(*WORDS))
    async with client_of(stack) as client:
        assert TEXT == (await client.generate("Tell me")).text


async def test_every_wait_has_a_deadline() -> None:
    stack = ScriptedStack([ACCEPTED])
    async with client_of(stack, timeout_s=0.2) as client:
        with pytest.raises(DeadlineExceededError, match=r"within 0\.2 s"):
            await client.generate("Tell me")

        assert [ID] == [cancel.request_id for cancel in stack.cancels]


async def test_closing_the_client_ends_its_streams() -> None:
    stack = ScriptedStack([ACCEPTED])
    client = client_of(stack)
    task = asyncio.create_task(client.generate("Tell me"))
    await asyncio.sleep(0.05)
    before = asyncio.all_tasks()
    await client.close()
    await client.close()
    with pytest.raises(ClientClosedError):
        await task
    with pytest.raises(ClientClosedError):
        client.stream("Tell me")

    assert [ID] == [cancel.request_id for cancel in stack.cancels]
    assert not [one for one in before if one.get_name() == "slipstream-stream" and not one.done()]


async def test_a_stream_is_read_in_its_block_and_once() -> None:
    stack = ScriptedStack(whole(*WORDS))
    async with client_of(stack) as client:
        stream = client.stream("Tell me")
        with pytest.raises(RuntimeError, match="within its block"):
            await anext(stream)
        async with stream:
            await stream.read()
        with pytest.raises(RuntimeError, match="entered once"):
            await stream.open()


@pytest.mark.parametrize(
    ("url", "options", "match"),
    [
        ("localhost:4222", {}, "nats://HOST:PORT or http://HOST:PORT"),
        ("redis://localhost", {}, "no URL of a server"),
        ("nats://localhost", {"api_key": "k"}, "api_key is for http"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused_at_once(
    url: str, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigurationError, match=match):
        AsyncClient(url, **options)


async def test_a_submission_is_stored_and_its_result_fetched() -> None:
    stack = ScriptedStack()
    async with client_of(stack) as client:
        key = await client.submit("Tell me", request_key="order-17", max_tokens=3)
        assert await client.result(key) is None
        assert stack.broker is not None
        (message,) = stack.broker.durable.queue.waiting
        request = decode_request(message.payload)
        choice = Choice(text=TEXT, token_ids=PackedInts([1, 2]), finish_reason="length", seed=9)
        completion = Completion(
            request_id=ID,
            attempt=1,
            choices=[choice],
            usage=Usage(num_prompt_tokens=1, num_output_tokens=2),
            timings=Timings(),
            seed=9,
        )
        store = stack.broker.durable.results
        await store.create(
            key, encode(completion), {"Slipstream-Body-Digest": body_digest(request)}
        )
        answer = await client.result(key, wait_s=1)

    assert result_key("order-17") == key
    assert (False, 3) == (request.stream, request.max_tokens)
    assert answer is not None
    assert (TEXT, "length", 9) == (answer.text, answer.finish_reason, answer.seed)


async def test_a_result_that_is_a_failure_raises_it() -> None:
    stack = ScriptedStack()
    async with client_of(stack) as client:
        key = await client.submit("Tell me")
        assert stack.broker is not None
        await stack.broker.durable.results.create(key, encode(LOST), {})
        with pytest.raises(RequestFailedError, match="is gone"):
            await client.result(key)
