"""
Everything that clients do, at once, for as long as a soak lasts; each answer is judged.

What the fake engine says is checked token by token. Other requests come from a small set: each must
be answered as it was the first time, by whichever engine.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any

from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.messages.common import Failed
from tests.chaos.crowd import Crowd
from tests.end_to_end import client, http_client
from tests.integration.submitter import Submitter

_REST_S = 0.05  # on average, of one who has been answered
_CANCEL_S = 0.05  # likewise, of one who won't wait
_ANSWER_S = 60.0
_NUM_PROMPTS = 12
_REGEX = "[a-f]{3}(, [0-9]{2}){2}"
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": _PERSON}}

Fields = Mapping[str, Any]  # Any: fields of a request


class SoakLoad:
    """Asks until it is told to stop."""

    def __init__(
        self,
        asking: client.Client,
        crowd: Crowd,
        http: http_client.HttpClient,
        bus: NatsBus,
        model: str,
    ) -> None:
        self._model = model
        self._asking = asking
        self._crowd = crowd
        self._http = http
        self._submitter = Submitter(bus)
        self._random = Random(1)
        self._first: dict[str, str] = {}  # answers, by what was asked
        self._is_over = False
        self.num_asked: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def run(self, duration_s: float, num_together: int, *, is_fake: bool) -> None:
        """Keep so many clients busy; return when the last of them is answered."""
        kinds = {**_KINDS, **_FAKE_KINDS} if is_fake else _KINDS
        async with asyncio.TaskGroup() as group:
            for number in range(num_together):
                group.create_task(self._go_on(kinds, number))
            await asyncio.sleep(duration_s)
            self._is_over = True

    async def _go_on(self, kinds: "Mapping[str, Kind]", number: int) -> None:
        names = sorted(kinds)
        while not self._is_over:
            name = names[number % len(names)]
            number += 1 + self._random.randrange(2)
            self.num_asked[name] += 1
            try:
                async with asyncio.timeout(_ANSWER_S):
                    await kinds[name](self)
            except Exception as error:  # noqa: BLE001 - whatever it is, the soak has failed, and goes on
                self.wrong.append(f"{name}: {type(error).__name__}: {error}")
            await asyncio.sleep(self._random.expovariate(1 / _REST_S))

    async def any_length(self) -> None:
        """Streams and plain requests, by all routes, some with drafts, half with a prefix."""
        await self._crowd.ask(self._random.randrange(1, 300), self._random.randrange(8, 120))

    async def long_prompt(self) -> None:
        """Many chunks."""
        await self._crowd.ask(self._random.randrange(1500, 3000), 16)

    async def cancelled(self) -> None:
        """Somebody who does not wait for the end."""
        after_s = self._random.expovariate(1 / _CANCEL_S)
        await self._crowd.ask(self._random.randrange(1, 300), 400, cancel_after_s=after_s)

    async def interactive(self) -> None:
        """A stream of text."""
        body = self._body(max_tokens=40)
        stream = await self._asking.stream(body)
        if stream.ending["type"] == "failed":
            self.wrong.append(f"stream: {stream.ending}")
        else:
            self._compare("text", body, stream.text)

    async def batch(self) -> None:
        """Who has time."""
        body = self._body(max_tokens=40)
        answer = await self._asking.ask({**body, "latency_class": "batch"})
        self._compare("text", body, client.text_of(answer))

    async def durable(self) -> None:
        """Left with the server, and fetched."""
        body = self._body(max_tokens=40)
        ending = await self._submitter.ending(await self._submitter.submit(**body), _ANSWER_S)
        if isinstance(ending, Failed):
            self.wrong.append(f"durable: {ending.code}: {ending.message}")
        else:
            self._compare("text", body, ending.choices[0].text)

    async def choices(self) -> None:
        """Several answers to one prompt."""
        body = self._body(n=3, temperature=1, seed=7, max_tokens=24)
        answer = await self._asking.ask(body)
        self._compare("choices", body, "|".join(each["text"] for each in answer["choices"]))

    async def structured(self) -> None:
        """A grammar."""
        body = self._body(guided_regex=_REGEX, max_tokens=32)
        text = client.text_of(await self._asking.ask(body))
        self._compare("regex", body, text)
        if not re.fullmatch(_REGEX, text):
            self.wrong.append(f"structured: {text!r}")

    async def http_whole(self) -> None:
        """A chat over HTTP, as JSON."""
        body = self._chat()
        self._compare("chat", body, (await self._http.chat(body)).text)

    async def http_stream(self) -> None:
        """The same as events."""
        body = self._chat()
        events = await self._http.stream(http_client.CHAT, body)
        if events.error is not None or not events.is_done:
            self.wrong.append(f"http_stream: {events.status}, {events.error}")
        self._compare("chat", body, events.text)

    async def http_structured(self) -> None:
        """A schema over HTTP."""
        body = {**self._chat(), "max_tokens": 80, "response_format": _SCHEMA}
        reply = await self._http.chat(body)
        self._compare("schema", body, reply.text)
        if reply.choice["finish_reason"] == "stop":
            json.loads(reply.text)

    async def http_gone(self) -> None:
        """A client that hangs up."""
        body = {**self._chat(), "max_tokens": 400, "ignore_eos": True}
        async with self._http.streaming(http_client.CHAT, body) as chunks:
            async for _ in chunks:
                break

    def _prompt(self) -> str:
        number = self._random.randrange(_NUM_PROMPTS)
        return "You answer briefly. " * (number % 4) + f"What comes after {number}?"

    def _body(self, **fields: Any) -> Fields:  # Any: as above
        return {"prompt": self._prompt(), "temperature": 0, **fields}

    def _chat(self) -> dict[str, Any]:  # Any: as above
        messages = [{"role": "user", "content": self._prompt()}]
        return {"model": self._model, "messages": messages, "temperature": 0, "max_tokens": 40}

    def _compare(self, kind: str, body: Fields, said: str) -> None:
        """Note what differs from the first answer to the same."""
        asked = f"{kind} {json.dumps(body, sort_keys=True)}"
        expected = self._first.setdefault(asked, said)
        if expected != said:
            self.wrong.append(f"{asked}: {said!r}, not {expected!r}")


Kind = Callable[[SoakLoad], Awaitable[None]]

_KINDS: Mapping[str, Kind] = {
    "batch": SoakLoad.batch,
    "choices": SoakLoad.choices,
    "durable": SoakLoad.durable,
    "http_gone": SoakLoad.http_gone,
    "http_stream": SoakLoad.http_stream,
    "http_structured": SoakLoad.http_structured,
    "http_whole": SoakLoad.http_whole,
    "interactive": SoakLoad.interactive,
    "structured": SoakLoad.structured,
}
# Judged token by token, which only the fake engine's answers can be.
_FAKE_KINDS: Mapping[str, Kind] = {
    "any_length": SoakLoad.any_length,
    "cancelled": SoakLoad.cancelled,
    "long_prompt": SoakLoad.long_prompt,
}
