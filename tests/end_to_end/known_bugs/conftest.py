"""
The stacks on which known bugs are looked for, and clients of them.

Each client checks when its test is over that a plain request is answered and no block is held.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import pytest
from tokenizers import Tokenizer

from slipstream.shared.model.fake_model import write_fake_model
from tests.end_to_end import client, http_client, stack
from tests.end_to_end.known_bugs import recipes

_FAKE = ["--test-mode", "--engine", "fake"]
_INT8 = ["--format", "int8", "--threads", "2"]

# R5 on the real model: 24 blocks of 32 tokens, prompts in chunks of 16, drafts always in time.
_HARD = {
    "SLIPSTREAM_KV_BLOCKS": "24",
    "SLIPSTREAM_NUM_GRANTED_BLOCKS": "2",
    "SLIPSTREAM_TOKEN_BUDGET": "16",
    "SLIPSTREAM_DRAFT_BUDGET_MS": "1000",
    "SLIPSTREAM_MAX_NUM_DRAFT_TOKENS": "6",
}
_NARROW = {
    "SLIPSTREAM_SEATS": "2",
    "SLIPSTREAM_MAX_NUM_WAITING": "8",
    "SLIPSTREAM_FAKE_STEP_MS": "20",
}
# The same places for the real model; and a reader that takes nothing is given up after a moment.
_LEAN = {
    "SLIPSTREAM_SEATS": "2",
    "SLIPSTREAM_MAX_NUM_WAITING": "8",
    "SLIPSTREAM_STALL_TIMEOUT_S": "2",
}
# R5 on the fake engine: 16 blocks of 32 tokens.
_TIGHT = {
    "SLIPSTREAM_KV_BLOCKS": "16",
    "SLIPSTREAM_NUM_GRANTED_BLOCKS": "2",
    "SLIPSTREAM_TOKEN_BUDGET": "64",
    "SLIPSTREAM_FAKE_STEP_MS": "2",
}
_HOST_IDS: dict[str, str] = {}
_FAKE_VARIABLES = {"SLIPSTREAM_DRAFT_BUDGET_MS": "1000"}
_CHUNKED = {"SLIPSTREAM_TOKEN_BUDGET": "16", "SLIPSTREAM_FAKE_STEP_MS": "5"}
_SPOILED = {"SLIPSTREAM_NAN_TOKEN_ID": "0", "SLIPSTREAM_FAKE_STEP_MS": "3"}


@contextlib.asynccontextmanager
async def _asking(running: stack.Stack) -> AsyncIterator[client.Client]:
    async with client.connected(running.nats_url) as asking:
        # A host's name comes with its next report; one wait a stack is enough.
        asking._host_id = _HOST_IDS.get(running.mark)
        yield asking
        await recipes.check_recovered(asking)
        _HOST_IDS[running.mark] = await asking.host_id()


def _stack(
    name: str,
    arguments: list[str],
    variables: Mapping[str, str],
    scope: Literal["session", "module"] = "module",
    needs: str = "tmp_path_factory",
) -> Callable[..., Iterator[stack.Stack]]:
    """Make the fixture of a stack; `needs` names another one that must be there first."""

    @pytest.fixture(scope=scope, name=f"{name}_stack")
    def up(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[stack.Stack]:
        request.getfixturevalue(needs)
        with stack.running(arguments, tmp_path_factory.mktemp(name), variables) as started:
            yield started

    return up


def _client(name: str) -> Callable[..., AsyncIterator[client.Client]]:
    """Make the fixture of a client of that stack."""

    @pytest.fixture(name=name)
    async def asking(request: pytest.FixtureRequest) -> AsyncIterator[client.Client]:
        async with _asking(request.getfixturevalue(f"{name}_stack")) as found:
            yield found

    return asking


def _http(name: str) -> Callable[..., AsyncIterator[http_client.HttpClient]]:
    """Make the fixture of a client over HTTP of that stack."""

    @pytest.fixture(name=f"{name}_http")
    async def asking(request: pytest.FixtureRequest) -> AsyncIterator[http_client.HttpClient]:
        running = request.getfixturevalue(f"{name}_stack")
        async with _asking(running), http_client.connected(http_client.url_of(running)) as found:
            yield found

    return asking


_SMALL = ["--kv-memory", "1MiB"]

# The real model in int8 with room for everybody; and where everything is short: blocks, chunks.
roomy_stack = _stack("roomy", [*_INT8, "--kv-memory", "256MiB"], {}, "session", "packed_int8")
hard_stack = _stack("hard", _INT8, _HARD, "session", "packed_int8")
lean_stack = _stack("lean", [*_INT8, "--kv-memory", "64MiB"], _LEAN, "session", "packed_int8")
# Made-up tokens, and a byte a token. Drafts are never late; two seats, eight may wait, and a step
# takes a while; so few blocks that a handful of requests push one another out; prompts in chunks of
# 16, each of which takes a moment; the logits behind "!", which the engine never says, no numbers.
fake_stack = _stack("fake", [*_FAKE, *_SMALL], _FAKE_VARIABLES, "session")
narrow_stack = _stack("narrow", [*_FAKE, *_SMALL], _NARROW)
tight_stack = _stack("tight", _FAKE, _TIGHT)
chunked_stack = _stack("chunked", [*_FAKE, *_SMALL], _CHUNKED)
spoiled_stack = _stack("spoiled", [*_FAKE, *_SMALL], _SPOILED)

roomy, hard, fake = _client("roomy"), _client("hard"), _client("fake")
narrow, tight, lean = _client("narrow"), _client("tight"), _client("lean")
chunked, spoiled = _client("chunked"), _client("spoiled")
roomy_http, lean_http = _http("roomy"), _http("lean")


@pytest.fixture
async def float32(real_client: client.Client) -> AsyncIterator[client.Client]:
    """A client of the stack in float32 that all end-to-end tests share."""
    yield real_client
    await recipes.check_recovered(real_client)


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> Tokenizer:
    """The default model's, read by the library alone."""
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


@pytest.fixture(scope="session")
def decode(tokenizer: Tokenizer) -> recipes.Decode:
    """What the default model's tokens say, control tokens left out."""
    return lambda token_ids: str(tokenizer.decode(list(token_ids)))


@pytest.fixture(scope="session")
def fake_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The fake engine's."""
    directory = write_fake_model(tmp_path_factory.mktemp("model") / "fake")
    return Tokenizer.from_file(str(directory / "tokenizer.json"))
