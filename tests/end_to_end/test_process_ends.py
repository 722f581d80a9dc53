"""Processes are really apart: killing one leaves the others up, and every block comes back."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest
from nats.errors import NoRespondersError

from slipstream.shared.bus.permissions import GUEST, NATS_ROLES, permissions_of

from . import client, conftest, stack

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

_FAKE = ["--test-mode", "--engine", "fake"]
_SERVICES = ("scheduler", "kv", "prefill", "decode", "draft", "gateway")
_SECONDS = 15.0  # what a client waits at most, after a death, to hear how it goes on
_STOP_UNDER_LOAD_S = 5.0
_NUM_STREAMS = 6
# Long enough to be running when the blow comes, short enough to wait for.
_STORY = {"prompt": "Once upon a time", "max_tokens": 90, "ignore_eos": True, "route": "remote"}
_HELLO = {"prompt": "Hello", "max_tokens": 4, "ignore_eos": True, "route": "remote"}


@pytest.fixture(scope="module")
def fake_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stack.Stack]:
    variables = {"SLIPSTREAM_FAKE_STEP_MS": "25"}
    arguments = [*_FAKE, "--kv-memory", "1MiB"]
    with stack.running(arguments, tmp_path_factory.mktemp("fake"), variables) as started:
        yield started
    assert {} == stack.marked_processes(started.mark)


@pytest.fixture(params=["fake", pytest.param("real", marks=[pytest.mark.model, pytest.mark.slow])])
def any_stack(request: pytest.FixtureRequest) -> stack.Stack:
    running: stack.Stack = request.getfixturevalue(f"{request.param}_stack")
    return running


async def test_streams_run_on_when_the_prefill_worker_is_killed(any_stack: stack.Stack) -> None:
    async with client.connected(any_stack.nats_url) as asking:
        others = _pids(any_stack, "prefill")
        async with _streams(asking) as running:
            old_pid = any_stack.kill("prefill")
            endings = await asyncio.gather(*running)

        assert [("finished", "length")] * _NUM_STREAMS == [_outcome(each) for each in endings]
        assert [90] * _NUM_STREAMS == [len(each.token_ids) for each in endings]
        meanwhile = await asking.ask(_HELLO)
        assert 4 == len(client.token_ids_of(meanwhile))
        assert others == _pids(any_stack, "prefill")
        await _wait_restarted(any_stack, "prefill", old_pid)
        assert "remote" == await _eventual_route(asking)
        await _check_all_blocks_are_back(asking)


async def test_streams_end_and_prefill_stays_when_the_decode_worker_is_killed(
    any_stack: stack.Stack,
) -> None:
    async with client.connected(any_stack.nats_url) as asking:
        others = _pids(any_stack, "decode")
        streams = [await _listen(asking, _STORY) for _ in range(_NUM_STREAMS)]
        await _wait_all(streams, lambda each: bool(each.frames), 30)
        assert not any(each.endings for each in streams), "a stream ended before the blow"
        old_pid = any_stack.kill("decode")
        await _wait_all(streams, lambda each: _attempt(each) > 1, _SECONDS)
        await _wait_all(streams, lambda each: bool(each.endings), client.ANSWER_S)

        for each in streams:
            assert ("finished", "length") == _outcome(each)
            assert 90 == len(each.token_ids)
        assert others == _pids(any_stack, "decode")
        await _wait_restarted(any_stack, "decode", old_pid)
        assert 4 == len(client.token_ids_of(await asking.ask(_HELLO)))
        await _check_all_blocks_are_back(asking)


@pytest.mark.slow
async def test_plain_requests_are_answered_though_their_decode_worker_is_killed(
    fake_stack: stack.Stack,
) -> None:
    """Nobody has seen a token: another attempt serves them, and the tokens are the same."""
    async with client.connected(fake_stack.nats_url) as asking:
        expected = client.token_ids_of(await asking.ask({**_STORY, "seed": 3}))
        asks = [asyncio.create_task(asking.ask({**_STORY, "seed": 3})) for _ in range(4)]
        await _wait_decoding(asking, len(asks))

        fake_stack.kill("decode")
        answers = await asyncio.gather(*asks)

        assert [expected] * len(asks) == [client.token_ids_of(answer) for answer in answers]
        assert {2} == {answer["attempt"] for answer in answers}
        await _check_all_blocks_are_back(asking)


async def test_a_prompt_whose_prefill_worker_is_killed_is_answered(
    fake_stack: stack.Stack,
) -> None:
    async with client.connected(fake_stack.nats_url) as asking:
        prompt = {**_HELLO, "prompt": "word " * 1500}
        answering = asyncio.create_task(asking.ask(prompt))
        report = await asking.report_of("prefill")
        while not report.held:
            report = await asking.report_of("prefill")

        fake_stack.kill("prefill")
        answer = await answering

        assert 4 == len(client.token_ids_of(answer))
        assert answer["attempt"] > 1
        await _check_all_blocks_are_back(asking)


async def test_the_stack_serves_again_when_the_kv_manager_was_killed(
    fake_stack: stack.Stack,
) -> None:
    async with client.connected(fake_stack.nats_url) as asking:
        old_host_id = await asking.host_id()
        async with _streams(asking) as running:
            old_pids = {name: fake_stack.pid(name) for name in ("prefill", "decode")}
            old_pid = fake_stack.kill("kv")
            async with asyncio.timeout(_SECONDS):
                endings = await asyncio.gather(*running)

        for each in endings:
            assert ("finished", "length") == _outcome(each)
        await _wait_restarted(fake_stack, "kv", old_pid)
        for name, pid in old_pids.items():
            await _wait_restarted(fake_stack, name, pid)
        assert 4 == len(client.token_ids_of(await asking.ask(_HELLO)))
        assert old_host_id != await asking.host_id(is_fresh=True)
        await _check_all_blocks_are_back(asking)


async def test_decoding_goes_on_when_the_draft_worker_is_killed(fake_stack: stack.Stack) -> None:
    async with client.connected(fake_stack.nats_url) as asking:
        async with _streams(asking) as running:
            old_pid = fake_stack.kill("draft")
            endings = await asyncio.gather(*running)

        assert [("finished", "length")] * _NUM_STREAMS == [_outcome(each) for each in endings]
        await _wait_restarted(fake_stack, "draft", old_pid)


async def test_running_streams_end_well_when_the_scheduler_is_killed(
    fake_stack: stack.Stack,
) -> None:
    async with client.connected(fake_stack.nats_url) as asking:
        async with _streams(asking) as running:
            old_pid = fake_stack.kill("scheduler")
            endings = await asyncio.gather(*running)

        assert [("finished", "length")] * _NUM_STREAMS == [_outcome(each) for each in endings]
        await _wait_restarted(fake_stack, "scheduler", old_pid)
        await _check_all_blocks_are_back(asking)


@pytest.mark.slow
async def test_a_new_scheduler_knows_its_workers_before_the_first_request(
    fake_stack: stack.Stack,
) -> None:
    """Else it would place that request before it hears of the prefill worker."""
    async with client.connected(fake_stack.nats_url) as asking:
        for _ in range(3):
            fake_stack.kill("scheduler")

            answer = await _first_answer(asking)

            assert "remote" == answer["route"]


@pytest.mark.model
@pytest.mark.usefixtures("model_dir")
async def test_a_stop_under_load_ends_every_stream_and_leaves_nothing(
    start_stack: conftest.StartStack,
) -> None:
    """As a service manager stops it: SIGTERM, while streams decode and a long prompt prefills."""
    running = start_stack(["--kv-memory", "768MiB"])
    run_dir = running.run_dir
    story = {**_STORY, "max_tokens": 1000}
    ids = [1 + position % 40_000 for position in range(1500)]
    long = {"prompt_token_ids": ids, "max_tokens": 1000, "ignore_eos": True, "route": "remote"}
    async with client.connected(running.nats_url) as asking:
        streams = [await _listen(asking, story) for _ in range(4)]
        await _wait_all(streams, lambda each: bool(each.frames), 30)
        prefilling = await _listen(asking, long)
        while not (await asking.report_of("prefill")).held:
            pass
        assert [] == prefilling.frames, "its prefill has ended before the stop"
        assert [] == [end for each in streams for end in each.endings], "a stream ended by itself"

        stopped_at = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(running.process.wait, stack.STOP_S)
        took_s = time.monotonic() - stopped_at

    assert took_s < _STOP_UNDER_LOAD_S
    assert {} == stack.marked_processes(running.mark)
    assert not run_dir.exists()
    for each in (*streams, prefilling):
        assert 1 == len(each.endings), each.messages[-3:]


@pytest.mark.slow
async def test_no_process_outlives_a_killed_supervisor_and_the_next_one_cleans_up(
    start_stack: conftest.StartStack,
) -> None:
    first = start_stack(_FAKE)
    left = first.run_dir
    assert len(_SERVICES) + 2 == len(stack.marked_processes(first.mark))

    first.process.send_signal(signal.SIGKILL)

    assert stack.wait_until(lambda: not stack.marked_processes(first.mark), 5)
    assert list((left / "arena").glob("arena.*"))
    second = start_stack(_FAKE)
    assert not left.exists()
    async with client.connected(second.nats_url) as asking:
        assert 4 == len(client.token_ids_of(await asking.ask(_HELLO)))
    assert 0 == second.stop()
    assert {} == stack.marked_processes(second.mark)


@pytest.mark.model
async def test_no_kv_bytes_cross_nats(real_stack: stack.Stack) -> None:
    """All that anybody publishes during a long remote request is far less than its KV."""
    num_prompt_tokens, num_kv_bytes_a_token = 1500, 30 * 2 * 3 * 64 * 4
    seen = []

    async def see(message: client.Msg) -> None:
        seen.append((message.subject, len(message.data) + len(str(message.headers or ""))))

    async with (
        listening_to_all(real_stack.nats_url, see) as watching,
        client.connected(real_stack.nats_url) as asking,
    ):
        ids = [1 + position % 40_000 for position in range(num_prompt_tokens)]
        answer = await asking.ask({"prompt_token_ids": ids, "max_tokens": 8, "route": "remote"})
        for each in watching:
            await each.flush()

    assert "remote" == answer["route"]
    assert any(".decode." in subject for subject, _ in seen), "the hand-over was not seen"
    num_bytes = sum(size for _, size in seen)
    assert num_bytes < num_prompt_tokens * num_kv_bytes_a_token / 200, num_bytes


@contextlib.asynccontextmanager
async def listening_to_all(url: str, see: client.Hear) -> AsyncIterator[list[client.NatsClient]]:
    """Hear once, with the keys of all roles, whatever any of them may hear."""
    watching, heard = [], set[str]()
    try:
        for role in NATS_ROLES:
            if role != GUEST:
                subjects = set(permissions_of(role).subscribe) - heard
                watching.append(await client.listening(url, role, see, *subjects))
                heard |= subjects
        yield watching
    finally:
        for each in watching:
            await each.close()


def _outcome(found: client.Stream) -> tuple[str, str]:
    ending = found.ending
    return ending["type"], ending.get("finish_reason", ending.get("code"))


def _pids(running: stack.Stack, but: str) -> dict[str, int]:
    return {name: running.pid(name) for name in _SERVICES if name != but}


def _attempt(found: client.Stream) -> int:
    """The attempt whose tokens came last."""
    attempt: int = found.frames[-1]["attempt"]
    return attempt


async def _wait_all(
    streams: list[client.Stream], is_met: Callable[[client.Stream], bool], timeout_s: float
) -> None:
    async with asyncio.timeout(timeout_s):
        while not all(is_met(each) for each in streams):
            await asyncio.sleep(0.01)


async def _wait_restarted(running: stack.Stack, name: str, old_pid: int) -> None:
    await asyncio.to_thread(running.wait_restarted, name, old_pid)


async def _listen(asking: client.Client, request: Mapping[str, Any]) -> client.Stream:
    """Send a streamed request; what comes is taken as long as the connection lives."""
    found = client.Stream()

    async def take(message: client.Msg) -> None:
        found.messages.append(client.decode(message.data))

    inbox = asking.connection.new_inbox()
    await asking.connection.subscribe(inbox, cb=take)
    payload = client.encode({**request, "stream": True})
    await asking.connection.publish(client.GENERATE.subject(), payload, reply=inbox)
    return found


@contextlib.asynccontextmanager
async def _streams(asking: client.Client) -> AsyncIterator[list["asyncio.Task[client.Stream]"]]:
    """Streams of which each has shown a token and has not ended."""
    started = [asyncio.Event() for _ in range(_NUM_STREAMS)]

    async def read(has_begun: asyncio.Event) -> client.Stream:
        found = client.Stream()
        async for message in asking.messages(_STORY, timeout_s=60):
            found.messages.append(message)
            if found.frames:
                has_begun.set()
        return found

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(read(has_begun)) for has_begun in started]
        async with asyncio.timeout(30):
            await asyncio.gather(*(has_begun.wait() for has_begun in started))
        assert not any(task.done() for task in tasks), "a stream ended before the blow"
        yield tasks


async def _wait_decoding(asking: client.Client, num_sequences: int) -> None:
    async with asyncio.timeout(30):
        while len((await asking.report_of("decode")).held) < num_sequences:
            pass


async def _first_answer(asking: client.Client) -> client.Answer:
    """Ask until somebody listens; the server may not have seen the death yet."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await asking.ask(_HELLO, timeout_s=2)
            except (NoRespondersError, TimeoutError):
                await asyncio.sleep(0.01)


async def _eventual_route(asking: client.Client) -> str:
    """Return the route once the scheduler has heard of the new worker, or after a while."""
    deadline_s = asyncio.get_running_loop().time() + 10
    while True:
        answer = await asking.ask(_HELLO)
        if answer["route"] == "remote" or asyncio.get_running_loop().time() > deadline_s:
            route: str = answer["route"]
            return route


async def _check_all_blocks_are_back(asking: client.Client) -> None:
    await asking.host_id(is_fresh=True)
    books = await asking.idle_audit()
    assert [] == books.get("problems", [])
    held = ("granted", "leased", "committed", "quarantined")
    assert [0, 0, 0, 0] == [books[f"num_{state}"] for state in held]
