"""What is submitted is answered, once, whatever ends in between."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.services.scheduler import submission_rules
from slipstream.shared.bus.durable import StorageError
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import (
    DEAD,
    LEADER_BUCKET,
    REQUEUE,
    REQUEUE_MODEL,
    RESULTS_BUCKET,
    SUBMIT,
    SUBMIT_MODEL,
    SUBMIT_STREAM,
    WORKERS_BUCKET,
    model_token,
)
from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.messages.codec import encode, encoding_of
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Completion, GenerateRequest
from slipstream.shared.messages.submission import result_key, sequence_key

from .service_stack import Client, ServiceStack, until, until_empty
from .submitter import Submitter

pytestmark = pytest.mark.nats

Start = Callable[..., Awaitable[ServiceStack]]
SLOW = {"fake": FakeEngineConfig(step_ms=20.0)}


@pytest.fixture
async def start(own_nats_server: Any, tmp_path: Path) -> AsyncIterator[Start]:
    """A function that starts services on a server that nobody else submits to."""
    stacks = []

    async def make(*roles: str, **settings: dict[str, Any]) -> ServiceStack:
        scheduler = {"redelivery_s": 1.0, **settings.pop("scheduler", {})}
        stacks.append(ServiceStack(own_nats_server.url, tmp_path, scheduler=scheduler, **settings))
        return await stacks[-1].start(*(roles or ("scheduler", "kv", "prefill", "decode")))

    yield make
    for stack in stacks:
        await stack.stop()


@pytest.fixture
async def bus(own_nats_server: Any) -> AsyncIterator[NatsBus]:
    made = await NatsBus.connect(own_nats_server.url, "test")
    yield made
    await made.close()


@pytest.fixture
def submitter(bus: NatsBus) -> Submitter:
    return Submitter(bus)


async def test_a_submission_is_answered_in_the_bucket(
    start: Start, bus: NatsBus, submitter: Submitter
) -> None:
    stack = await start()
    answer = await submitter.ending(await submitter.submit(max_tokens=12))
    expected = await Client(bus).ask("Hello", max_tokens=12)
    await submitter.until_empty()

    assert isinstance(answer, Completion)
    assert isinstance(expected, Completion)
    assert expected.choices == answer.choices
    assert [] == await submitter.dead_letters()
    await until_empty(stack)


async def test_results_are_in_the_encoding_of_the_request(
    start: Start, submitter: Submitter
) -> None:
    await start()
    in_json = await submitter.submit(max_tokens=2)
    in_msgpack = await submitter.submit_bytes(encode(GenerateRequest(prompt="Hello", max_tokens=2)))
    await submitter.until_empty()
    stored = [await submitter.durable.results.get(key) for key in (in_json, in_msgpack)]

    assert ["json", "msgpack"] == [encoding_of(each.value) for each in stored if each is not None]


async def test_a_submission_can_name_the_model_in_its_subject(
    start: Start, submitter: Submitter
) -> None:
    await start()
    keys = [
        await submitter.submit_bytes(b'{"prompt": "Hello", "max_tokens": 2}', subject)
        for subject in (
            SUBMIT_MODEL.subject(model=model_token("fake")),
            SUBMIT_MODEL.subject(model="other"),
        )
    ]
    served, refused = [await submitter.ending(key) for key in keys]

    assert isinstance(served, Completion)
    assert isinstance(refused, Failed)
    assert ("model_not_found", "model") == (refused.code, refused.field)


async def test_several_choices_come_as_one_result(
    start: Start, bus: NatsBus, submitter: Submitter
) -> None:
    await start()
    sampled = {"n": 3, "temperature": 2, "seed": 5, "max_tokens": 8}
    answer = await submitter.ending(await submitter.submit(**sampled))
    expected = await Client(bus).ask("Hello", **sampled)

    assert isinstance(answer, Completion)
    assert isinstance(expected, Completion)
    assert [0, 1, 2] == [choice.index for choice in answer.choices]
    assert expected.choices == answer.choices


async def test_a_killed_schedulers_submission_is_answered_once_by_the_next(
    start: Start, submitter: Submitter
) -> None:
    stack = await start(every=SLOW)
    key = await submitter.submit(max_tokens=60, ignore_eos=True)
    await until(lambda: any(each.phase == "decoding" for each in stack.desk.records.values()))
    await stack.kill(*stack.living("scheduler"))
    assert 1 == await submitter.num_queued()
    await stack.add("scheduler")
    answer = await submitter.ending(key)
    await submitter.until_empty()

    assert isinstance(answer, Completion), answer
    assert 60 == answer.usage.num_output_tokens
    assert [] == await submitter.dead_letters()
    await until_empty(stack)


async def test_a_draining_scheduler_puts_its_submissions_back_at_once(
    start: Start, submitter: Submitter
) -> None:
    stack = await start(every=SLOW, scheduler={"redelivery_s": 600.0})
    keys = [await submitter.submit(max_tokens=60, ignore_eos=True) for _ in range(3)]
    await until(lambda: len(stack.desk.records) == 3)
    (process,) = stack.living("scheduler")
    await process.service.stop()
    assert 3 == await submitter.num_queued()
    process.is_killed = True
    await stack.add("scheduler")
    answers = [await submitter.ending(key) for key in keys]
    await process.buses[0].close()

    assert [60] * 3 == [
        each.usage.num_output_tokens for each in answers if isinstance(each, Completion)
    ]


async def test_more_than_the_queue_holds_waits_in_the_stream(
    start: Start, submitter: Submitter
) -> None:
    stack = await start(
        scheduler={"max_num_waiting": 4},
        decode={"num_seats": 2},
        prefill={"num_seats": 2},
        every={"fake": FakeEngineConfig(step_ms=2.0)},
    )
    refused: list[str] = []
    stack.one("scheduler")._front._metrics.refused = refused.append
    keys = [await submitter.submit(max_tokens=4, n=1 + number % 3) for number in range(40)]
    answers = [await submitter.ending(key) for key in keys]
    await submitter.until_empty()

    assert [1 + number % 3 for number in range(40)] == [
        len(each.choices) for each in answers if isinstance(each, Completion)
    ]
    assert [] == refused


async def test_an_invalid_submission_ends_as_a_dead_letter(
    start: Start, submitter: Submitter
) -> None:
    await start()
    payloads = [
        b"no message",
        b'{"prompt": "x", "temperature": -1}',
        b'{"prompt": "x", "stream": true}',
        b'{"prompt": "x", "request_key": ""}',
    ]
    keys = [await submitter.submit_bytes(payload) for payload in payloads]
    answers = [await submitter.ending(key) for key in keys]
    await submitter.until_empty()
    letters = await submitter.dead_letters()

    assert ["invalid_request"] * 4 == [each.code for each in answers if isinstance(each, Failed)]
    assert [None, "temperature", "stream", "request_key"] == [
        each.field for each in answers if isinstance(each, Failed)
    ]
    assert sorted(payloads) == sorted(letter.payload for letter in letters)
    assert {("invalid_request", 1)} == {
        (letter.reason, letter.num_deliveries) for letter in letters
    }


async def test_what_is_answered_already_is_not_computed_again(
    start: Start, submitter: Submitter
) -> None:
    stack = await start()
    first = await submitter.submit(request_key="order-17", max_tokens=4)
    key = result_key("order-17")
    answer = await submitter.ending(key)
    opened: list[object] = []
    front = stack.one("scheduler")._front
    front.open_request = opened.append
    await submitter.submit(max_tokens=4, request_key="order-17")
    await submitter.until_empty()

    assert first != key
    assert answer == await submitter.ending(key)
    assert [] == opened


async def test_one_key_with_another_body_is_a_conflict(start: Start, submitter: Submitter) -> None:
    await start()
    await submitter.submit("Hello", request_key="k", max_tokens=4)
    other = await submitter.submit("Bye", request_key="k", max_tokens=4)
    elsewhere = await submitter.submit("Bye", request_key="k", tenant="t", max_tokens=4)
    conflict = await submitter.ending(other)
    await submitter.until_empty()

    assert isinstance(conflict, Failed)
    assert ("conflict", "request_key") == (conflict.code, conflict.field)
    assert isinstance(await submitter.ending(result_key("k")), Completion)
    assert isinstance(await submitter.ending(result_key("k", "t")), Completion)
    assert elsewhere
    assert ["conflict"] == [letter.reason for letter in await submitter.dead_letters()]


async def test_no_worker_no_submission_is_taken(start: Start, submitter: Submitter) -> None:
    stack = await start("scheduler")
    key = await submitter.submit(max_tokens=4)
    await asyncio.sleep(1.0)
    num_taken = await submitter.num_taken()
    for role in ("kv", "prefill", "decode"):
        await stack.add(role)

    assert 0 == num_taken
    assert isinstance(await submitter.ending(key), Completion)


async def test_a_failure_that_may_pass_is_tried_again(
    start: Start, submitter: Submitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission_rules, "_FIRST_DELAY_S", 0.05)
    stack = await start(scheduler={"max_num_deliveries": 3})
    front = stack.one("scheduler")._front
    open_request, num_tries = front.open_request, 0

    async def fail_twice(*arguments: Any, **options: Any) -> Any:
        nonlocal num_tries
        num_tries += 1
        if num_tries < 3:
            return Failed(code="no_workers", message="for a while")
        return await open_request(*arguments, **options)

    front.open_request = fail_twice
    served = await submitter.ending(await submitter.submit(max_tokens=4))
    num_tries = -10
    given_up = await submitter.ending(await submitter.submit("Bye", max_tokens=4))
    await submitter.until_empty()
    letters = await submitter.dead_letters()

    assert isinstance(served, Completion)
    assert isinstance(given_up, Failed)
    assert -10 + 3 == num_tries
    assert [("no_workers", 3)] == [(each.reason, each.num_deliveries) for each in letters]


async def test_streams_that_are_gone_are_made_again(start: Start, submitter: Submitter) -> None:
    await start()
    before = await submitter.submit(max_tokens=4)
    await submitter.ending(before)
    await submitter.stream.delete_stream(SUBMIT_STREAM)
    await submitter.stream.delete_stream(f"KV_{RESULTS_BUCKET}")
    async with asyncio.timeout(15):
        while True:
            try:
                key = await submitter.submit(max_tokens=4)
                break
            except StorageError:
                await asyncio.sleep(0.1)

    assert isinstance(await submitter.ending(key), Completion)
    assert key != before


async def test_of_two_schedulers_one_dies_under_load(start: Start, submitter: Submitter) -> None:
    roles = ("scheduler", "scheduler", "kv", "prefill", "decode")
    # Few each, or the faster one would have them all.
    stack = await start(*roles, every=SLOW, scheduler={"max_num_submissions": 5})
    keys = [await submitter.submit(f"Hello {number}", max_tokens=30) for number in range(20)]
    await until(lambda: stack.desk.records)
    await stack.kill(stack.active)
    answers = [await submitter.ending(key) for key in keys]
    await submitter.until_empty()

    assert [Completion] * 20 == [type(answer) for answer in answers]
    assert [] == await submitter.dead_letters()


@pytest.mark.timeout(60)
async def test_a_restart_of_the_server_loses_none(
    start: Start, bus: NatsBus, submitter: Submitter, own_nats_server: Any
) -> None:
    stack = await start(every=SLOW)
    keys = [await submitter.submit(f"Hello {number}", max_tokens=40) for number in range(6)]
    await until(lambda: len(stack.desk.records) == 6)
    own_nats_server.stop()
    await until(lambda: not bus.client.is_connected)
    own_nats_server.start()
    await until(lambda: bus.client.is_connected)
    answers = [await submitter.ending(key, 40) for key in keys]
    await submitter.until_empty()

    assert [Completion] * 6 == [type(answer) for answer in answers]
    assert [] == await submitter.dead_letters()


async def test_a_plain_client_gets_the_acknowledgement(
    start: Start, bus: NatsBus, submitter: Submitter
) -> None:
    """It is the one answer to a submission, and no answer to what is interactive."""
    await start()
    answer = await bus.request(SUBMIT.subject(), b'{"prompt": "x", "max_tokens": 2}', timeout_s=5)
    acknowledged = json.loads(answer.payload)
    plain = await Client(bus).ask("Hello", max_tokens=2)

    assert SUBMIT_STREAM == acknowledged["stream"]
    assert isinstance(plain, Completion)
    assert isinstance(await submitter.ending(sequence_key(acknowledged["seq"])), Completion)


async def test_the_trace_begins_with_its_publisher(start: Start, submitter: Submitter) -> None:
    await start()
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    sequence = await submitter.durable.publish(
        SUBMIT.subject(),
        b'{"prompt": "x", "max_tokens": 2}',
        {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"},
    )
    answer = await submitter.ending(sequence_key(sequence))

    assert trace_id == answer.trace_id


async def test_nothing_interactive_is_captured(start: Start, submitter: Submitter) -> None:
    await start("scheduler")
    captured = {
        subject
        for info in await submitter.stream.streams_info()
        if info.config.name not in (f"KV_{WORKERS_BUCKET}", f"KV_{LEADER_BUCKET}")
        for subject in info.config.subjects or []
    }

    assert {
        SUBMIT.pattern,
        SUBMIT_MODEL.wildcard,
        REQUEUE.wildcard,
        REQUEUE_MODEL.wildcard,
        DEAD.wildcard,
        f"$KV.{RESULTS_BUCKET}.>",
    } == captured
