"""A decode worker dies in the middle of a stream: it goes on elsewhere as if nothing had been."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.messages.codec import ClientAnswer, decoder_of
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Finished, TokenFrame

from .service_stack import LONG, Client, ServiceStack, until, until_empty

pytestmark = pytest.mark.nats

Start = Callable[..., Awaitable[ServiceStack]]
_NUM_SHOWN = 6  # tokens that the scheduler knows of when the worker dies
_LETTERS = {"type": "string", "pattern": "^[a-z]{30,40}$"}

# What a sampler and a stop checker carry from token to token, each in a request of its own.
BODIES: dict[str, dict[str, Any]] = {  # Any: fields of a request
    "seed": {"temperature": 1.0, "seed": 11},
    "penalties": {
        "temperature": 1.0,
        "seed": 5,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.8,
        "frequency_penalty": 0.9,
    },
    "min_tokens": {"temperature": 1.0, "seed": 3, "min_tokens": 30, "ignore_eos": False},
    "schema": {
        "guided_json": {
            "type": "object",
            "properties": {"name": _LETTERS, "color": _LETTERS},
            "required": ["name", "color"],
        },
        "temperature": 1.0,
        "seed": 2,
        "max_tokens": 120,
    },
    "logprobs": {"logprobs": True, "top_logprobs": 2, "temperature": 1.0, "seed": 9},
    "choices": {"n": 3, "temperature": 1.0, "seed": 8},
    "drafts": {"speculation": "ngram", "temperature": 0.0},
}


class Reader:
    """Takes the messages of a stream, each choice for itself, as the README's rule says."""

    def __init__(self, num_choices: int) -> None:
        self.token_ids: defaultdict[int, list[int]] = defaultdict(list)
        self.texts: defaultdict[int, str] = defaultdict(str)
        self.logprobs: defaultdict[int, list[Any]] = defaultdict(list)  # Any: as they come
        self.endings: dict[int, Finished] = {}
        self.attempts: set[int] = set()
        self.is_done = asyncio.Event()
        self._num_choices = num_choices

    async def take(self, incoming: Incoming) -> None:
        message = decoder_of(ClientAnswer).decode(incoming.payload)
        assert not isinstance(message, Failed), message
        if isinstance(message, TokenFrame):
            self._take_frame(message)
        elif isinstance(message, Finished):
            assert message.choice not in self.endings, "a second ending"
            self.endings[message.choice] = message
            if len(self.endings) == self._num_choices:
                self.is_done.set()

    def _take_frame(self, frame: TokenFrame) -> None:
        self.attempts.add(frame.attempt)
        ids, text = self.token_ids[frame.choice], self.texts[frame.choice]
        assert frame.index <= len(ids), "a gap"
        assert frame.text_offset <= len(text), "a gap in the text"
        num_known = len(ids) - frame.index
        again = list(frame.token_ids[:num_known])
        assert ids[frame.index : frame.index + len(again)] == again, "told otherwise"
        ids += frame.token_ids[num_known:]
        self.texts[frame.choice] += frame.text[len(text) - frame.text_offset :]
        self.logprobs[frame.choice] += (frame.logprobs or [])[num_known:]

    def outcome(self) -> Any:  # Any: to be compared with another one
        """Return everything that must not depend on who served."""
        endings = {
            choice: (each.finish_reason, each.stop_reason, each.num_tokens, each.text_length)
            for choice, each in self.endings.items()
        }
        return dict(self.token_ids), dict(self.texts), dict(self.logprobs), endings


async def _read(client: Client, body: dict[str, Any], meanwhile: Callable[[], Any]) -> Reader:
    """Stream a request; do something while it runs."""
    reader = Reader(body.get("n", 1))
    inbox = client.bus.new_inbox()
    subscription = await client.bus.subscribe(inbox, reader.take)
    await client.stream_to(inbox, LONG, **body)
    await meanwhile()
    async with asyncio.timeout(15):
        await reader.is_done.wait()
    await subscription.stop()
    return reader


async def _nothing() -> None:
    """Leave it alone."""


async def _disturbed_and_not(
    stack: ServiceStack, client: Client, body: dict[str, Any], num_shown: int = _NUM_SHOWN
) -> Sequence[Reader]:
    """Return how a request ends with its worker killed on the way, and without."""

    async def kill() -> None:
        await until(lambda: _all_have_shown(stack, num_shown, body.get("n", 1)))
        (decode,) = stack.living("decode")
        await stack.add("decode")
        await stack.kill(decode)

    body = {"max_tokens": 60, "ignore_eos": True, **body}
    disturbed = await _read(client, body, kill)
    undisturbed = await _read(client, body, _nothing)
    await until_empty(stack)
    return disturbed, undisturbed


def _all_have_shown(stack: ServiceStack, num_tokens: int, num_choices: int) -> bool:
    records = list(stack.desk.records.values())
    return len(records) == num_choices and all(
        len(each.token_ids) >= num_tokens for each in records
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
async def test_a_stream_goes_on_with_the_same_tokens(
    start: Start, client: Client, name: str
) -> None:
    stack = await start(decode={"fake": FakeEngineConfig(step_ms=10)})
    disturbed, undisturbed = await _disturbed_and_not(stack, client, BODIES[name])

    assert disturbed.attempts >= {1, 2} or name == "logprobs"
    assert undisturbed.attempts == {1}
    assert undisturbed.outcome() == disturbed.outcome()
    assert all(disturbed.texts.values())


async def test_a_stop_string_begun_before_the_death_is_found_behind_it(
    start: Start, client: Client
) -> None:
    """Its first letters were held back, and its last ones come from another worker."""
    stack = await start(decode={"fake": FakeEngineConfig(step_ms=20)})
    whole = await _read(client, {"max_tokens": 60, "ignore_eos": True}, _nothing)
    text = whole.texts[0]
    stop = text[4:34]  # half of it has been computed by the death, at six tokens or some more
    body = {"stop": [stop], "ignore_eos": True}
    disturbed, undisturbed = await _disturbed_and_not(stack, client, body)

    assert 2 == disturbed.endings[0].attempt
    assert undisturbed.outcome() == disturbed.outcome()
    assert text[:4] == disturbed.texts[0]
    assert ("stop", stop) == (disturbed.endings[0].finish_reason, disturbed.endings[0].stop_reason)


@pytest.mark.slow
async def test_what_was_not_reported_any_more_is_said_again_and_dropped(
    start: Start, client: Client
) -> None:
    """The scheduler knows less than the reader has; the next attempt begins where it thinks."""
    stack = await start(decode={"fake": FakeEngineConfig(step_ms=10)})

    async def kill() -> None:
        await until(lambda: _all_have_shown(stack, _NUM_SHOWN, 1))
        (decode,) = stack.living("decode")
        await stack.add("decode")
        (record,) = stack.desk.records.values()
        del record.token_ids[2:]
        await stack.kill(decode)

    body = {"max_tokens": 60, "ignore_eos": True}
    disturbed = await _read(client, body, kill)
    undisturbed = await _read(client, body, _nothing)

    assert undisturbed.outcome() == disturbed.outcome()
    await until_empty(stack)
