"""Clients in a storm, each as its users write it, and what each of them came to."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from slipstream.client.async_client import AsyncClient
from slipstream.shared.bus.subjects import GENERATE, RESUME
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.model.fake_runner import next_token_id
from slipstream.shared.model.store import resolve_model
from slipstream.shared.model.tokenizer import Tokenizer
from tests.end_to_end import client

_SILENCE_S = 2.0  # the README's rule
_AGAIN_S = 0.5
_LETTERS = "abcdefghijklmnopqrstuvwxyz     "
# What is said of a request whose scheduler and whose worker have both died.
_FORGOTTEN = "not_found"
# After these the same request can be served a little later.
_PASSING = ("overloaded", "draining", "no_workers", "no_responders", _FORGOTTEN, "worker_lost")


@dataclass(eq=False)
class Told:
    """One request, and all that its client was told."""

    kind: str
    prompt: str
    num_wanted: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    ending: str = ""
    num_endings: int = 0
    num_repeats: int = 0  # times that the client had to send it again
    num_forgotten: int = 0  # times that nobody knew the request any more
    num_resumes: int = 0
    arrivals_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def problem(self, undisturbed: "Undisturbed") -> str | None:
        """Return what is wrong with it."""
        if self.problems:
            return self.problems[0]
        if self.ending != "length":
            return f"ended as {self.ending or 'nothing'}"
        expected = undisturbed.text(self.prompt, self.num_wanted)
        return None if self.text == expected else "not the undisturbed text"


class Undisturbed:
    """What the fake engine says where nothing happens to it."""

    def __init__(self, cache_dir: Path) -> None:
        self._tokenizer = Tokenizer(resolve_model("fake", cache_dir, report=lambda _line: None))

    def text(self, prompt: str, num_tokens: int) -> str:
        """Return the text of so many tokens."""
        token_ids = self._tokenizer.encode(prompt)
        for _ in range(num_tokens):
            token_ids.append(next_token_id(token_ids))
        return self._tokenizer.decode(token_ids[-num_tokens:])


def make_prompt(random: Random, num_tokens: int) -> str:
    """Return random letters; every other one begins as many others do."""
    source = Random(random.randrange(4)) if random.random() < 0.5 else random
    return "".join(source.choices(_LETTERS, k=max(1, num_tokens)))


def _body(told: Told) -> dict[str, Any]:  # Any: fields of a request
    return {
        "prompt": told.prompt,
        "max_tokens": told.num_wanted,
        "temperature": 0,
        "ignore_eos": True,
    }


async def ask_library(asking: AsyncClient, told: Told, timeout_s: float) -> None:
    """Ask with the Python client, which does everything by itself but for what was forgotten."""
    deadline_s = time.monotonic() + timeout_s
    told.ending = _FORGOTTEN
    while told.ending == _FORGOTTEN and time.monotonic() < deadline_s:
        told.text = ""
        await _ask_library_once(asking, told, timeout_s)
        told.num_forgotten += told.ending == _FORGOTTEN


async def _ask_library_once(asking: AsyncClient, told: Told, timeout_s: float) -> None:
    async with asking.stream(
        told.prompt,
        timeout_s=timeout_s,
        max_tokens=told.num_wanted,
        temperature=0,
        ignore_eos=True,
    ) as stream:
        try:
            async for piece in stream:
                told.text += piece
                told.arrivals_s.append(time.monotonic())
        except SlipstreamError as error:
            told.ending = error.code
            return
        finally:
            told.num_repeats += stream.num_retries
        told.num_endings += 1
        told.ending = stream.answer.finish_reason
        told.token_ids = stream.answer.token_ids
        if stream.answer.text != told.text:
            told.problems.append("the answer is not what was streamed")


async def ask_http(http: httpx.AsyncClient, told: Told, timeout_s: float) -> None:
    """Ask over HTTP, and again while the gateway is away: the same body has the same text."""
    body = {**_body(told), "model": "fake"}
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        with contextlib.suppress(httpx.HTTPError):
            answer = await http.post("/v1/completions", json=body, timeout=timeout_s)
            found = answer.json()
            if answer.status_code == httpx.codes.OK:
                told.text = found["choices"][0]["text"]
                told.ending = found["choices"][0]["finish_reason"]
                told.num_endings += 1
                return
            told.ending = str(found["error"]["code"])
            told.num_forgotten += told.ending == _FORGOTTEN
            if told.ending != _FORGOTTEN and answer.status_code not in (429, 502, 503, 504):
                return
        told.num_repeats += 1
        await asyncio.sleep(_AGAIN_S)


class PlainReader:
    """Knows NATS and JSON, and reads a stream by the three rules of the README."""

    def __init__(self, connection: NatsClient, told: Told) -> None:
        self._connection = connection
        self._told = told
        self._inbox = connection.new_inbox()
        self._arrived: asyncio.Queue[Msg] = asyncio.Queue()
        self._request_id = ""

    async def ask(self, timeout_s: float) -> None:
        """Ask; return at the ending."""
        subscription = await self._connection.subscribe(self._inbox, cb=self._arrived.put)
        try:
            async with asyncio.timeout(timeout_s):
                await self._send()
                while not self._told.num_endings:
                    await self._read()
                await asyncio.sleep(_SILENCE_S / 4)  # for what should not come
                while not self._arrived.empty():
                    await self._take(self._arrived.get_nowait())
        except TimeoutError:
            self._told.problems.append(f"no ending in time: {self._request_id}")
        finally:
            await subscription.unsubscribe()

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(_SILENCE_S):
                message = await self._arrived.get()
        except TimeoutError:
            # Not even accepted: whoever had it is gone.
            await (self._resume() if self._request_id else self._repeat())
        else:
            await self._take(message)

    async def _send(self) -> None:
        self._request_id = ""
        await self._publish(GENERATE.subject(), {**_body(self._told), "stream": True})

    async def _repeat(self) -> None:
        self._told.num_repeats += 1
        await asyncio.sleep(_AGAIN_S)
        await self._send()

    async def _resume(self) -> None:
        self._told.num_resumes += 1
        body = {
            "type": "resume",
            "request_id": self._request_id,
            "from_index": len(self._told.token_ids),
            "reply": self._inbox,
        }
        await self._publish(RESUME.subject(request_id=self._request_id), body)

    async def _publish(self, subject: str, body: Mapping[str, Any]) -> None:  # Any: JSON
        with contextlib.suppress(NatsError):  # it comes back, and silence asks again
            await self._connection.publish(subject, client.encode(body), reply=self._inbox)

    async def _take(self, incoming: Msg) -> None:
        if not incoming.data:  # nobody listens there
            if not self._request_id and not self._told.num_endings:
                await self._repeat()
            return
        message = client.decode(incoming.data)
        request_id = message.get("request_id") or self._request_id
        if message["type"] in ("accepted", "token_frame", "finished"):
            self._request_id = request_id
        if message["type"] == "token_frame":
            await self._take_frame(message)
        elif message["type"] == "finished":
            await self._take_finished(message)
        elif message["type"] == "failed":
            await self._take_failed(message)

    async def _take_frame(self, frame: client.Answer) -> None:
        told = self._told
        num_known = len(told.token_ids) - frame["index"]
        num_known_characters = len(told.text) - frame["text_offset"]
        if num_known < 0 or num_known_characters < 0:
            await self._resume()
            return
        told_again = frame["token_ids"][:num_known]
        if told.token_ids[frame["index"] :][: len(told_again)] != told_again:
            told.problems.append("told otherwise")
        if fresh := frame["token_ids"][num_known:]:
            told.token_ids += fresh
            told.arrivals_s.append(time.monotonic())
        told.text += frame["text"][num_known_characters:]

    async def _take_finished(self, ending: client.Answer) -> None:
        if ending["num_tokens"] > len(self._told.token_ids):
            await self._resume()
            return
        # Delivery is at least once: what is the same again is no second ending.
        if self._told.ending not in ("", ending["finish_reason"]):
            self._told.problems.append(f"ended twice, as {self._told.ending} before")
        self._told.ending = ending["finish_reason"]
        self._told.num_endings += 1

    async def _take_failed(self, failed: client.Answer) -> None:
        if self._told.num_endings:
            if failed["code"] not in _PASSING:
                self._told.problems.append(f"ended, then failed: {failed['code']}")
        elif failed["code"] in _PASSING:
            self._told.num_forgotten += failed["code"] == _FORGOTTEN
            await self._repeat()
        else:
            self._told.ending = failed["code"]
            self._told.num_endings += 1
