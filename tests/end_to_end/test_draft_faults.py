"""Streams go on without a draft worker that is dead, frozen or slow, and use it afterwards."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
from nats.aio.msg import Msg

from slipstream.shared.bus.permissions import inbox_prefix
from slipstream.shared.bus.subjects import DRAFT
from slipstream.shared.messages.codec import decoder_of, encode
from slipstream.shared.messages.draft import (
    DraftJob,
    DraftOpen,
    DraftProposal,
    DraftTokens,
    DraftWant,
)
from slipstream.shared.messages.packed import PackedInts

from . import client, conftest, stack
from .drafter import accepted, drafting

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

_FAKE = ["--test-mode", "--engine", "fake", "--kv-memory", "1MiB"]
_STEP_S, _BUDGET_S, _SLOWED_S = 0.010, 0.020, 0.050
_VARIABLES = {
    "SLIPSTREAM_DRAFT_PLACE": "draft",
    "SLIPSTREAM_FAKE_STEP_MS": f"{_STEP_S * 1000:g}",
    "SLIPSTREAM_DRAFT_BUDGET_MS": f"{_BUDGET_S * 1000:g}",
}
_NUM_STREAMS = 3
_TOKEN_ID = ord("a")  # they say nothing else, so that every draft is right
_ENDLESS = {
    "prompt_token_ids": [_TOKEN_ID] * 8,
    "logit_bias": {str(_TOKEN_ID): 100},
    "temperature": 0,
    "max_tokens": 8000,
    "ignore_eos": True,
    "route": "local",
}
_NUM_PLAIN_TOKENS = 150
_MAX_NUM_WAITS = 2
_PROBE_S = 1.0  # one step may wait so often, to see whether it is quick again
# Ten times what it may take: others use the machine too, and what was waited for is counted.
_MAX_GAP_S = 10 * _MAX_NUM_WAITS * (_BUDGET_S + _STEP_S)
_PLAIN_S = 10 * _NUM_PLAIN_TOKENS * _STEP_S
_BACK_S = 10 * _PROBE_S
_NUM_FRAMES = 10


@dataclass(eq=False)
class Voice:
    """One stream: when how many of its tokens came."""

    frames: list[tuple[float, int]] = field(default_factory=list)
    request_id: str = ""
    ending: client.Answer | None = None

    async def listen(self, asking: client.Client) -> None:
        """Note all of it."""
        async for message in asking.messages(_ENDLESS):
            self.request_id = message.get("request_id") or self.request_id
            if message["type"] != "token_frame":
                self.ending = message if message["type"] != "accepted" else None
            elif token_ids := message["token_ids"]:
                assert {_TOKEN_ID} == set(token_ids)
                self.frames.append((time.monotonic(), len(token_ids)))

    def num_tokens(self, since_s: float) -> int:
        """Return how much came since then."""
        return sum(number for at, number in self.frames if at >= since_s)

    def is_quick(self, since_s: float) -> bool:
        """Tell whether the latest frames, all of them later, have two tokens or more each."""
        latest = [number for at, number in self.frames if at >= since_s][-_NUM_FRAMES:]
        return len(latest) == _NUM_FRAMES and sum(latest) >= 2 * _NUM_FRAMES

    def longest_gap_s(self, since_s: float) -> float:
        """Return how long nothing came, at most."""
        times = [since_s, *(at for at, _ in self.frames if at >= since_s)]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


class Talk:
    """Streams that run on until the test ends."""

    def __init__(self, asking: client.Client, url: str) -> None:
        self._asking = asking
        self._url = url
        self._listening: list[client.NatsClient] = []
        self.voices = [Voice() for _ in range(_NUM_STREAMS)]
        self._is_answered: dict[str, bool] = {}  # jobs for draft workers, by where answers go

    async def hear_jobs(self) -> None:
        """Count jobs from now on. Whoever listens in hides from senders that nobody else does."""
        inboxes = f"{inbox_prefix('decode')}.>"
        self._listening = [
            await client.listening(self._url, "decode", self._take_answer, inboxes),
            await client.listening(self._url, "draft", self._take_job, DRAFT.wildcard),
        ]

    async def count_unanswered(self) -> int:
        """Return for how many jobs up to now a step waited as long as any may."""
        # What has been sent has to be heard first: this process may be late, too.
        for each in self._listening:
            await each.flush()
        await asyncio.sleep(_STEP_S)
        return list(self._is_answered.values()).count(False)

    async def until_quick(self) -> None:
        """Return when drafts come, and are accepted, in every stream."""
        since_s = time.monotonic()
        await self._until(lambda voice: voice.is_quick(since_s), _BACK_S)

    async def check_plain(self) -> float:
        """Have every stream go on without drafts at its plain pace; return how long that took."""
        since_s = time.monotonic()
        await self._until(lambda voice: voice.num_tokens(since_s) >= _NUM_PLAIN_TOKENS, _PLAIN_S)
        for voice in self.voices:
            assert voice.longest_gap_s(since_s) <= _MAX_GAP_S
        return time.monotonic() - since_s

    async def end(self) -> None:
        """Cancel all; they must have used drafts, and leave nothing behind."""
        for each in self._listening:
            await each.close()
        for voice in self.voices:
            await self._asking.cancel(voice.request_id)
        await self._until(lambda voice: voice.ending is not None, client.SETTLE_S)
        for voice in self.voices:
            assert voice.ending is not None, "waited for above"
            assert "finished" == voice.ending["type"], voice.ending
            usage = voice.ending["usage"]
            assert usage["num_accepted_tokens"] == usage["num_tested_tokens"] > 0
        assert not (await self._asking.idle_audit()).get("problems")

    async def _until(self, is_true: Callable[[Voice], bool], timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            while not all(map(is_true, self.voices)):
                await asyncio.sleep(_STEP_S)

    async def _take_job(self, message: Msg) -> None:
        if isinstance(decoder_of(DRAFT.message).decode(message.data), DraftJob):
            self._is_answered[message.reply] = False

    async def _take_answer(self, message: Msg) -> None:
        if message.subject in self._is_answered:
            self._is_answered[message.subject] = True


@contextlib.asynccontextmanager
async def _talking(running: stack.Stack) -> AsyncIterator[Talk]:
    """Streams while a block runs, in the beginning with drafts."""
    async with client.connected(running.nats_url) as asking:
        talk = Talk(asking, running.nats_url)
        async with asyncio.TaskGroup() as group:
            for voice in talk.voices:
                group.create_task(voice.listen(asking))
            await talk.until_quick()
            yield talk
            await talk.end()


def _max_num_waits(seconds: float) -> int:
    return _MAX_NUM_WAITS + int(seconds / _PROBE_S)


@pytest.mark.slow
async def test_a_frozen_draft_worker_holds_up_two_steps_and_is_used_when_it_wakes(
    start_stack: conftest.StartStack,
) -> None:
    running = start_stack(_FAKE, _VARIABLES)
    async with _talking(running) as talk:
        await talk.hear_jobs()
        await talk.until_quick()
        num_before, began_s = await talk.count_unanswered(), time.monotonic()
        with running.frozen("draft"):
            await talk.check_plain()
            num_unanswered = await talk.count_unanswered() - num_before
            seconds = time.monotonic() - began_s
        await talk.until_quick()

    assert 0 < num_unanswered <= _max_num_waits(seconds)
    assert 0 == running.stop()


@pytest.mark.parametrize(
    "is_told",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["nobody listens", "nobody answers"],
)
async def test_a_killed_draft_worker_holds_up_two_steps_and_the_next_one_is_used(
    start_stack: conftest.StartStack, is_told: bool
) -> None:
    """The server says at once that nobody listens any more, or a host that is gone says nothing."""
    running = start_stack(_FAKE, _VARIABLES)
    async with _talking(running) as talk:
        if not is_told:
            await talk.hear_jobs()
            await talk.until_quick()
        num_before, began_s = await talk.count_unanswered(), time.monotonic()
        old_pid = running.kill("draft")
        await talk.check_plain()
        num_unanswered = await talk.count_unanswered() - num_before
        seconds = time.monotonic() - began_s
        await asyncio.to_thread(running.wait_restarted, "draft", old_pid)
        await talk.until_quick()

    assert is_told or 0 < num_unanswered <= _max_num_waits(seconds)
    assert 0 == running.stop()


class Dawdler:
    """Proposes what will be said, at once or too late."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.num_late = 0

    async def answers(self, message: DraftOpen | DraftJob) -> AsyncIterator[bytes]:
        if isinstance(message, DraftOpen):
            yield accepted(message)
            return
        if self.delay_s:
            self.num_late += 1
            await asyncio.sleep(self.delay_s)
        yield encode(DraftTokens([_right(want) for want in message.wants]))


def _right(want: DraftWant) -> DraftProposal:
    return DraftProposal(
        request_id=want.request_id,
        attempt=want.attempt,
        position=want.position,
        token_ids=PackedInts([_TOKEN_ID] * want.max_num_tokens),
    )


async def test_a_slow_draft_worker_holds_up_two_steps_and_is_used_when_it_is_quick_again(
    start_stack: conftest.StartStack,
) -> None:
    running = start_stack([*_FAKE, "--draft", "0"], _VARIABLES)
    dawdler = Dawdler()
    async with drafting(running.nats_url, dawdler.answers), _talking(running) as talk:
        dawdler.delay_s = _SLOWED_S
        seconds = await talk.check_plain()
        num_late = dawdler.num_late
        dawdler.delay_s = 0.0
        await talk.until_quick()

    assert 0 < num_late <= _max_num_waits(seconds)
    assert 0 == running.stop()
