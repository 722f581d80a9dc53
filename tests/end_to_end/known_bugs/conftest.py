"""
The stacks on which known bugs are looked for, and clients of them.

Each client checks when its test is over that a plain request is answered and no block is held.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from slipstream.shared.model.fake_model import write_fake_model
from tests.end_to_end import client, stack
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
# R5 on the fake engine: 16 blocks of 32 tokens.
_TIGHT = {
    "SLIPSTREAM_KV_BLOCKS": "16",
    "SLIPSTREAM_NUM_GRANTED_BLOCKS": "2",
    "SLIPSTREAM_TOKEN_BUDGET": "64",
    "SLIPSTREAM_FAKE_STEP_MS": "2",
}
_HOST_IDS: dict[str, str] = {}
_CHUNKED = {"SLIPSTREAM_TOKEN_BUDGET": "16", "SLIPSTREAM_FAKE_STEP_MS": "5"}


@contextlib.contextmanager
def _running(
    arguments: list[str], variables: Mapping[str, str], directory: Path
) -> Iterator[stack.Stack]:
    started = stack.Stack(arguments, variables, directory)
    try:
        yield started
        assert 0 == started.stop()
    finally:
        started.close()


@contextlib.asynccontextmanager
async def _asking(running: stack.Stack) -> AsyncIterator[client.Client]:
    async with client.connected(running.nats_url) as asking:
        # A host's name comes with its next report; one wait a stack is enough.
        asking._host_id = _HOST_IDS.get(running.mark)
        yield asking
        await recipes.check_recovered(asking)
        _HOST_IDS[running.mark] = await asking.host_id()


@pytest.fixture(scope="session")
def roomy_stack(
    packed_int8: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[stack.Stack]:
    """The real model in int8 with room for everybody."""
    with _running([*_INT8, "--kv-memory", "256MiB"], {}, tmp_path_factory.mktemp("roomy")) as up:
        yield up


@pytest.fixture(scope="session")
def hard_stack(
    packed_int8: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[stack.Stack]:
    """The same where everything is short: blocks, chunks; and drafts are never late."""
    with _running(_INT8, _HARD, tmp_path_factory.mktemp("hard")) as up:
        yield up


@pytest.fixture(scope="session")
def fake_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stack.Stack]:
    """Made-up tokens, and a byte a token; drafts are never late."""
    variables = {"SLIPSTREAM_DRAFT_BUDGET_MS": "1000"}
    arguments = [*_FAKE, "--kv-memory", "1MiB"]
    with _running(arguments, variables, tmp_path_factory.mktemp("fake")) as up:
        yield up


@pytest.fixture(scope="module")
def narrow_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stack.Stack]:
    """Two seats, eight may wait, and a step takes a while."""
    with _running(
        [*_FAKE, "--kv-memory", "1MiB"], _NARROW, tmp_path_factory.mktemp("narrow")
    ) as up:
        yield up


@pytest.fixture(scope="module")
def tight_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stack.Stack]:
    """So few blocks that a handful of requests push one another out."""
    with _running(_FAKE, _TIGHT, tmp_path_factory.mktemp("tight")) as up:
        yield up


@pytest.fixture(scope="module")
def chunked_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stack.Stack]:
    """Prompts in chunks of 16, each of which takes a moment."""
    with _running(
        [*_FAKE, "--kv-memory", "1MiB"], _CHUNKED, tmp_path_factory.mktemp("chunked")
    ) as up:
        yield up


@pytest.fixture(scope="module")
def spoiled_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stack.Stack]:
    """The logits behind "!", which the fake engine never says, are no numbers."""
    variables = {"SLIPSTREAM_NAN_TOKEN_ID": "0", "SLIPSTREAM_FAKE_STEP_MS": "3"}
    with _running(
        [*_FAKE, "--kv-memory", "1MiB"], variables, tmp_path_factory.mktemp("spoiled")
    ) as up:
        yield up


@pytest.fixture
async def spoiled(spoiled_stack: stack.Stack) -> AsyncIterator[client.Client]:
    async with _asking(spoiled_stack) as asking:
        yield asking


@pytest.fixture
async def roomy(roomy_stack: stack.Stack) -> AsyncIterator[client.Client]:
    async with _asking(roomy_stack) as asking:
        yield asking


@pytest.fixture
async def hard(hard_stack: stack.Stack) -> AsyncIterator[client.Client]:
    async with _asking(hard_stack) as asking:
        yield asking


@pytest.fixture
async def fake(fake_stack: stack.Stack) -> AsyncIterator[client.Client]:
    async with _asking(fake_stack) as asking:
        yield asking


@pytest.fixture
async def narrow(narrow_stack: stack.Stack) -> AsyncIterator[client.Client]:
    async with _asking(narrow_stack) as asking:
        yield asking


@pytest.fixture
async def tight(tight_stack: stack.Stack) -> AsyncIterator[client.Client]:
    async with _asking(tight_stack) as asking:
        yield asking


@pytest.fixture
async def chunked(chunked_stack: stack.Stack) -> AsyncIterator[client.Client]:
    async with _asking(chunked_stack) as asking:
        yield asking


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
