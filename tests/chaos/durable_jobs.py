"""Jobs of the durable entrance, submitted whatever happens, and what has become of them."""

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tokenizers import Tokenizer

from slipstream.shared.bus.durable import MESSAGE_ID, StorageError
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.nats_topology import result_stream
from slipstream.shared.bus.subjects import SUBMIT, SUBMIT_STREAM
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Completion
from slipstream.shared.messages.submission import result_key, sequence_key
from slipstream.shared.model.fake_model import _byte_tokenizer
from slipstream.shared.model.fake_runner import next_token_id
from tests.integration.submitter import Submitter

_LETTERS = b"abcdefghijklmnopqrstuvwxyz     "
_REST_S = 0.1


@dataclass(frozen=True)
class Job:
    """One request; every other one has a key of its own."""

    number: int
    prompt: tuple[int, ...]
    num_tokens: int

    @functools.cached_property
    def token_ids(self) -> list[int]:
        """What its answer is, whoever gives it."""
        token_ids = list(self.prompt)
        for _ in range(self.num_tokens):
            token_ids.append(next_token_id(token_ids))
        return token_ids[len(self.prompt) :]

    @property
    def text(self) -> str:
        """The same as text, by the library that the fake model's tokenizer was made with."""
        return str(_tokenizer().decode(self.token_ids))

    @property
    def request_key(self) -> str | None:
        """Its name, if it has one."""
        return f"job-{self.number}" if self.number % 2 else None

    @property
    def body(self) -> bytes:
        """What is submitted."""
        fields: dict[str, Any] = {  # Any: fields of a request
            "prompt_token_ids": self.prompt,
            "max_tokens": self.num_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        if self.request_key is not None:
            fields["request_key"] = self.request_key
        return json.dumps(fields).encode()


@functools.cache
def _tokenizer() -> Tokenizer:
    return _byte_tokenizer()


def make_jobs(num_jobs: int, longest: int) -> list[Job]:
    """Return jobs of many lengths; the middle third takes longer than all others."""
    random = Random(num_jobs)
    jobs = []
    for number in range(num_jobs):
        is_middle = num_jobs // 3 <= number < 2 * (num_jobs // 3)
        shortest, above = (longest, 4 * longest) if is_middle else (4, longest)
        prompt = random.choices(_LETTERS, k=random.randrange(1, 120))
        jobs.append(Job(number, tuple(prompt), random.randrange(shortest, above)))
    return jobs


class JobBook:
    """Who submits jobs, and looks for their endings."""

    def __init__(self, bus: NatsBus) -> None:
        self.submitter = Submitter(bus)
        self._durable = bus.durable()
        self.keys: dict[int, str] = {}  # of results, by the number of the job

    async def submit(self, jobs: Sequence[Job], rest_s: float) -> None:
        """Submit one after another; none is given up, and none is stored twice."""
        for job in jobs:
            headers = {MESSAGE_ID: f"job-{job.number}"}
            while job.number not in self.keys:
                try:
                    sequence = await self._durable.publish(SUBMIT.subject(), job.body, headers)
                except StorageError:
                    await asyncio.sleep(_REST_S)
                else:
                    key = result_key(job.request_key) if job.request_key else None
                    self.keys[job.number] = key or sequence_key(sequence)
            await asyncio.sleep(rest_s)

    async def num_results(self) -> int | None:
        """Return how many results there are; None while nobody can say."""
        with contextlib.suppress(Exception):  # nats-py raises many kinds while it reconnects
            async with asyncio.timeout(2.0):
                info = await self.submitter.stream.stream_info(result_stream())
                return int(info.state.messages)
        return None

    async def until_results(self, num_results: int, timeout_s: float) -> None:
        """Return as soon as there are so many."""
        found = None
        give_up_at = time.monotonic() + timeout_s
        while (found := await self.num_results()) is None or found < num_results:
            assert time.monotonic() < give_up_at, f"{found} of {num_results} results came"
            await asyncio.sleep(_REST_S)

    async def until_taken(self, num_taken: int, timeout_s: float) -> None:
        """Return as soon as schedulers have so many in their hands."""
        async with asyncio.timeout(timeout_s):
            while await self.submitter.num_taken() < num_taken:
                await asyncio.sleep(0.005)

    async def problems(self, jobs: Sequence[Job]) -> list[str]:
        """Return what did not come to exactly one ending with the right text."""
        found = []
        for job in jobs:
            ending = await self.submitter.ending(self.keys[job.number])
            if isinstance(ending, Failed):
                found.append(f"{job.number}: {ending.code}: {ending.message}")
            elif not _is_right(job, ending):
                found.append(f"{job.number}: {ending.choices}, not {job.text!r}")
        state = (await self.submitter.stream.stream_info(result_stream())).state
        if (state.messages, state.last_seq) != (len(jobs), len(jobs)):
            found.append(f"{state.last_seq} endings were written, {state.messages} are there")
        num_left = (await self.submitter.stream.stream_info(SUBMIT_STREAM)).state.messages
        if num_left:
            found.append(f"{num_left} jobs are still in the queue")
        found += [f"a dead letter: {each.reason}" for each in await self.submitter.dead_letters()]
        return found


def _is_right(job: Job, ending: Completion) -> bool:
    (choice,) = ending.choices
    said = (list(choice.token_ids), choice.text, choice.finish_reason)
    return (job.token_ids, job.text, "length") == said


@contextlib.asynccontextmanager
async def job_book(nats_url: str) -> AsyncIterator[JobBook]:
    """A client while a block runs."""
    bus = await NatsBus.connect(nats_url, "jobs")
    try:
        yield JobBook(bus)
    finally:
        await bus.close()
