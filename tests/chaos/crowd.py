"""Many requests at once; of each is judged what comes: right tokens, and one ending."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from slipstream.shared.bus.subjects import GENERATE
from slipstream.shared.model.fake_runner import next_token_id
from tests.end_to_end import client

ENDED_LATE_S = 0.5  # after the last ending, for what comes behind one
_ENDINGS = ("completion", "finished", "failed")
_UNKNOWING = ("worker_lost", "cancelled")  # what a scheduler says that knows of no answer
_VOCABULARY = b"abcdefghijklmnopqrstuvwxyz     "


@dataclass(eq=False)
class Asked:
    """What came of one request."""

    prompt: list[int]
    token_ids: list[int] = field(default_factory=list)
    endings: list[client.Answer] = field(default_factory=list)
    request_id: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def outcome(self) -> str:
        """How it ended: its finish reason or the code of its failure."""
        if not self.endings:
            return "unanswered"
        ending = self.endings[0]
        if ending["type"] == "completion":
            return str(ending["choices"][0]["finish_reason"])
        return str(ending.get("finish_reason") or ending["code"])

    def take(self, message: client.Answer) -> None:
        """Take in a message."""
        self.request_id = message.get("request_id") or self.request_id
        if message["type"] == "token_frame":
            assert message["index"] <= len(self.token_ids), "a gap in the stream"
            if message["token_ids"]:  # else it is a sign of life, which may be late
                self.token_ids[message["index"] :] = message["token_ids"]
        elif message["type"] in _ENDINGS:
            self.endings.append(message)
            if message["type"] == "completion":
                self.token_ids = message["choices"][0]["token_ids"]
        self.changed.set()

    async def until_ended(self) -> None:
        """Return when there is an ending."""
        while not self.endings:
            self.changed.clear()
            await self.changed.wait()

    async def until_known(self) -> None:
        """Return when its id is known, or when it has ended."""
        while not self.request_id and not self.endings:
            self.changed.clear()
            await self.changed.wait()

    def is_right(self) -> bool:
        """Tell whether each token follows from all before it."""
        token_ids = list(self.prompt)
        for token_id in self.token_ids:
            if next_token_id(token_ids) != token_id:
                return False
            token_ids.append(token_id)
        return True


class Crowd:
    """Asks, over one connection."""

    def __init__(self, asking: client.Client, seed: int, timeout_s: float) -> None:
        self._asking = asking
        self._random = Random(seed)
        self._timeout_s = timeout_s
        self._prefix = asking.connection.new_inbox()
        self._running: dict[str, Asked] = {}
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.num_told_twice = 0
        self.num_asked = 0

    async def ask(
        self, num_prompt_tokens: int, num_output_tokens: int, *, cancel_after_s: float | None = None
    ) -> Asked:
        """Ask for random tokens; return when the answer has ended, or the time is up."""
        asked = Asked(self._prompt(num_prompt_tokens))
        return await self.ask_for(asked, num_output_tokens, cancel_after_s=cancel_after_s)

    async def ask_for(
        self,
        asked: Asked,
        num_output_tokens: int,
        *,
        cancel_after_s: float | None = None,
        **fields: Any,  # Any: fields of a request
    ) -> Asked:
        """Ask with a prompt, as above."""
        self.num_asked += 1
        name = str(self.num_asked)
        self._running[name] = asked
        # Another attempt serves a plain request from the start; of a stream tokens were seen.
        is_stream = cancel_after_s is not None or self._random.random() < 0.7
        body = {
            "prompt_token_ids": asked.prompt,
            "max_tokens": num_output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": is_stream,
            "route": self._random.choice(("auto", "remote", "local")),
            "speculation": self._random.choice(("off", "ngram")),
            "deadline_ms": int(self._timeout_s * 750),
            **fields,
        }
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(name, body)
                if cancel_after_s is not None:
                    await self._cancel(asked, cancel_after_s)
                await asked.until_ended()
        except TimeoutError:
            self.wrong.append(f"no ending within {self._timeout_s:g} s: {asked.request_id}")
        self._judge(asked, num_output_tokens)
        asyncio.get_running_loop().call_later(ENDED_LATE_S, self._forget, name)
        return asked

    async def take(self, message: Msg) -> None:
        """Take what comes to any inbox of ours."""
        asked = self._running.get(message.subject.rpartition(".")[2])
        if asked is not None:
            asked.take(client.decode(message.data))

    @property
    def inbox(self) -> str:
        """Where all answers come."""
        return f"{self._prefix}.*"

    async def _send(self, name: str, body: Mapping[str, Any]) -> None:  # Any: fields of a request
        await self._asking.connection.publish(
            GENERATE.subject(), client.encode(body), reply=f"{self._prefix}.{name}"
        )

    async def _cancel(self, asked: Asked, after_s: float) -> None:
        await asked.until_known()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await asked.until_ended()
        if not asked.endings:
            with contextlib.suppress(NatsError):
                await self._asking.cancel(asked.request_id)

    def _judge(self, asked: Asked, num_output_tokens: int) -> None:
        self.outcomes[asked.outcome] += 1
        if asked.outcome == "length" and len(asked.token_ids) != num_output_tokens:
            self.wrong.append(f"{len(asked.token_ids)} of {num_output_tokens} tokens came")
        if not asked.is_right():
            self.wrong.append(f"wrong tokens: {asked.request_id}")

    def _forget(self, name: str) -> None:
        asked = self._running.pop(name)
        first, *others = asked.endings or [{}]
        for other in others:
            # Whoever dies, or sleeps, between an answer and its report can't say that it was given.
            is_blind = other.get("code") in _UNKNOWING or other["type"] == first["type"]
            if is_blind and first["type"] != "failed":
                self.num_told_twice += 1
            else:
                self.wrong.append(f"{asked.request_id} has endings: {asked.endings}")

    def _prompt(self, num_tokens: int) -> list[int]:
        """Return random letters; every other one begins as many others do."""
        seed = self._random.randrange(4) if self._random.random() < 0.5 else self._random.random()
        return Random(seed).choices(_VOCABULARY, k=num_tokens)


@contextlib.asynccontextmanager
async def gathered(
    url: str, seed: int, timeout_s: float
) -> AsyncIterator[tuple[Crowd, client.Client]]:
    """A crowd while a block runs, and its client."""
    async with client.connected(url) as asking:
        crowd = Crowd(asking, seed, timeout_s)
        await asking.connection.subscribe(crowd.inbox, cb=crowd.take)
        yield crowd, asking
        await asyncio.sleep(2 * ENDED_LATE_S)
