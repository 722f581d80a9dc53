"""Two schedulers on a real server: one is killed, frozen or stopped, and clients don't notice."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.services.scheduler import leadership as leadership_module
from slipstream.shared.bus import leader as leader_module
from slipstream.shared.bus import nats_bus as nats_bus_module
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import GENERATE
from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.messages.generate import Completion, Finished
from slipstream.shared.model.tokenizer import Tokenizer

from .service_stack import Client, Process, ServiceStack, Stream, oracle, until, until_empty

pytestmark = [pytest.mark.nats, pytest.mark.timeout(90)]

Start = Callable[..., Awaitable[ServiceStack]]

_SLOW = {"fake": FakeEngineConfig(step_ms=10.0)}
_ROLES = ("scheduler", "scheduler", "kv", "prefill", "decode")
_DEADLINE_S = 30.0  # ten times what a stream may pause


@pytest.fixture
async def start(own_nats_server: Any, tmp_path: Path) -> AsyncIterator[Start]:
    """A function that starts two schedulers and the rest, on a server of their own."""
    stacks = []

    async def make(*roles: str, **settings: dict[str, Any]) -> ServiceStack:
        stacks.append(ServiceStack(own_nats_server.url, tmp_path, **settings))
        return await stacks[-1].start(*(roles or _ROLES))

    yield make
    for stack in stacks:
        await stack.stop()


@pytest.fixture
async def client(own_nats_server: Any) -> AsyncIterator[Client]:
    bus = await NatsBus.connect(own_nats_server.url, "test")
    yield Client(bus)
    await bus.close()


class Load:
    """Streams and plain requests of which more wait than run, and what each must say."""

    def __init__(self, client: Client, tokenizer: Tokenizer) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._prompts = [f"Question {number} of many" for number in range(16)]
        self.streams: list[Stream] = []
        self._plain: list[asyncio.Task[Any]] = []

    async def begin(self) -> None:
        options = {"max_tokens": 60, "ignore_eos": True}
        for prompt in self._prompts[::2]:
            stream = Stream(self._client.bus)
            await self._client.bus.subscribe(stream.inbox, stream.take)
            await self._client.stream_to(stream.inbox, prompt, **options)
            self.streams.append(stream)
        for prompt in self._prompts[1::2]:
            asking = self._client.ask(prompt, timeout_s=_DEADLINE_S, **options)
            self._plain.append(asyncio.create_task(asking))

    async def check(self) -> None:
        """All have ended, each once, with the text that nobody disturbed."""
        async with asyncio.timeout(_DEADLINE_S):
            completions = await asyncio.gather(*self._plain)
            await asyncio.gather(*(_until_ended(stream) for stream in self.streams))

        for prompt, stream in zip(self._prompts[::2], self.streams, strict=True):
            assert [Finished] == [type(each) for each in stream.endings], stream.endings
            assert self._expected(prompt) == stream.token_ids
        for prompt, completion in zip(self._prompts[1::2], completions, strict=True):
            assert isinstance(completion, Completion), completion
            assert self._expected(prompt) == list(completion.choices[0].token_ids)

    def _expected(self, prompt: str) -> list[int]:
        return oracle(self._tokenizer.encode(prompt), 60, ignore_eos=True)


async def _until_ended(stream: Stream) -> None:
    while not stream.endings:
        await asyncio.sleep(0.02)


async def loaded(stack: ServiceStack, client: Client, tokenizer: Tokenizer) -> Load:
    """Return a load of which some decodes and some waits, with a standby that knows of all."""
    load = Load(client, tokenizer)
    await load.begin()
    records = stack.desk.records
    await until(lambda: len(records) == 16 or not records)
    await until(lambda: any(each.token_ids for each in records.values()))
    standby = standby_of(stack).service.reign.standby
    await until(lambda: len(standby.shadow._by_request) >= len(records))

    assert any(each.phase == "waiting" for each in records.values())
    return load


def standby_of(stack: ServiceStack) -> Process:
    (process,) = [each for each in stack.living("scheduler") if not stack.is_active(each)]
    return process


def epoch_of(process: Process) -> int:
    return int(process.service.reign.leadership.epoch)


async def test_sixteen_requests_outlive_the_active_scheduler(
    start: Start, client: Client, tokenizer: Tokenizer
) -> None:
    """Running and waiting, streamed and plain, each ends once and says what it would have said."""
    stack = await start(decode=_SLOW | {"num_seats": 6}, scheduler={"num_reserved_seats": 0})
    load = await loaded(stack, client, tokenizer)
    first = stack.active
    epoch = epoch_of(first)
    await stack.kill(first)
    await until(lambda: any(map(stack.is_active, stack.living("scheduler"))))
    await load.check()

    assert epoch < epoch_of(stack.active)
    await until_empty(stack)
    await until(lambda: not stack.active.service.reign.standby.shadow)


@pytest.mark.slow
async def test_new_scheduler_cancels_and_resumes_what_the_old_one_placed(
    start: Start, client: Client
) -> None:
    stack = await start(decode=_SLOW)
    options = {"max_tokens": 3000, "ignore_eos": True}
    async with client.stream("Hello", **options) as stream:
        await stream.until(lambda: len(stream.token_ids) > 3)
        await stack.kill(stack.active)
        await until(lambda: any(map(stack.is_active, stack.living("scheduler"))))
        again = Stream(client.bus)
        subscription = await client.bus.subscribe(again.inbox, again.take)
        await client.resume(stream.request_id, again.inbox)
        await again.until(lambda: len(again.token_ids) > 3)
        cancelled = await client.cancel(stream.request_id)
        ending = await stream.ending()
        await subscription.stop()

    assert stream.token_ids[: len(again.token_ids)] == again.token_ids[: len(stream.token_ids)]
    assert "decoding" == cancelled.phase
    assert isinstance(ending, Finished)
    assert "abort" == ending.finish_reason
    await until_empty(stack)


@pytest.mark.slow
async def test_worker_that_dies_after_the_scheduler_costs_another_attempt(
    start: Start, client: Client, tokenizer: Tokenizer
) -> None:
    """The record was rebuilt from the worker's job: it can be placed again elsewhere."""
    stack = await start(decode=_SLOW, scheduler={"route": "local"})
    asking = asyncio.create_task(client.ask("Hello", max_tokens=500, ignore_eos=True))
    await until(lambda: any(each.token_ids for each in stack.desk.records.values()))
    await stack.kill(stack.active)
    await until(lambda: any(map(stack.is_active, stack.living("scheduler"))))
    (victim,) = stack.living("decode")
    await stack.add("decode")
    await stack.kill(victim)
    answer = await asking

    assert isinstance(answer, Completion), answer
    expected = oracle(tokenizer.encode("Hello"), 500, ignore_eos=True)
    assert expected == list(answer.choices[0].token_ids)
    assert answer.attempt > 1


@pytest.mark.slow
async def test_stopped_scheduler_hands_over_at_once(
    start: Start, client: Client, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the lease to run out, which here it never would."""
    monkeypatch.setattr(leader_module, "LEADER_TTL_S", 60.0)
    monkeypatch.setattr(leadership_module, "VALID_S", 45.0)
    stack = await start(decode=_SLOW | {"num_seats": 6}, scheduler={"num_reserved_seats": 0})
    load = await loaded(stack, client, tokenizer)
    first, second = stack.active, standby_of(stack)
    await until(lambda: first.service.reign._standby_heard_at > 0)
    await first.service.stop()
    await until(lambda: stack.is_active(second))
    await load.check()
    first.is_killed = True
    for bus in first.buses:
        await bus.close()

    await until_empty(stack)


async def test_frozen_scheduler_steps_down_when_it_wakes(
    start: Start, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It believes in its lease, as no clock told it otherwise: workers refuse it by its epoch."""
    stack = await start()
    first = stack.active
    reign = first.service.reign
    renewals = reign._lease.look

    async def frozen() -> None:
        """Renew nothing, as a process that doesn't run."""

    monkeypatch.setattr(reign._lease, "look", frozen)
    monkeypatch.setattr(reign.leadership, "is_sure", lambda _now: True)
    second = standby_of(stack)
    await until(lambda: stack.is_active(second))
    inbox = Stream(client.bus)
    await client.bus.subscribe(inbox.inbox, inbox.take)
    # As if it had been read before the freeze.
    held = Incoming(GENERATE.subject(), b'{"prompt": "Hello"}', inbox.inbox)
    await first.service._front.generate(held)
    answers = await asyncio.gather(*(client.ask(f"Hi {n}", max_tokens=4) for n in range(8)))
    await until(lambda: not stack.is_active(first))
    monkeypatch.setattr(reign._lease, "look", renewals)
    answer = await client.ask("Hello", max_tokens=4)

    assert [Completion] * 9 == [type(each) for each in (*answers, answer)]
    assert stack.is_active(second)
    assert not stack.is_active(first)
    # Of many messages none goes to one that leads no longer, though it still listens.
    assert not inbox.endings


@pytest.mark.slow
async def test_restart_of_the_server_changes_no_leader(
    start: Start, client: Client, own_nats_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the lease has faded meanwhile: a standby waits, and the active one writes at once."""
    monkeypatch.setattr(nats_bus_module, "RECONNECT_WAIT_S", 0.05)
    stack = await start()
    first = stack.active
    epoch = epoch_of(first)
    own_nats_server.stop()
    await asyncio.sleep(leader_module.LEADER_TTL_S + 0.5)
    own_nats_server.start()
    leadership = first.service.reign.leadership
    await until(lambda: leadership.state == "active")
    answer = await client.ask("Hello", max_tokens=4)

    assert isinstance(answer, Completion), answer
    assert (first, epoch) == (stack.active, epoch_of(first))


async def test_without_storage_a_single_scheduler_serves(
    plain_nats_server: Any, tmp_path: Path
) -> None:
    stack = ServiceStack(plain_nats_server.url, tmp_path)
    process = await stack.add("scheduler")
    leadership = process.service.reign.leadership
    await stack.stop()

    assert (True, False, 0) == (
        leadership.num_terms == 1,
        leadership.is_guarded,
        leadership.highest_seen,
    )
