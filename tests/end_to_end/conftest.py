"""Stacks of real processes, one a topology, and what looks at them from outside."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest

from . import client, oracle, prompts, stack, tap

StartStack = Callable[..., stack.Stack]


@pytest.fixture(scope="session")
def trace_tap() -> Iterator[tap.Tap]:
    with tap.Tap() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def real_stack(
    model_dir: Path, trace_tap: tap.Tap, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[stack.Stack]:
    """One of each service with the default model in float32, its spans received."""
    arguments = ["--kv-memory", "768MiB", "--format", "float32"]
    directory = tmp_path_factory.mktemp("real")
    with stack.running(arguments, directory, trace_tap.environment) as started:
        yield started


@pytest.fixture
async def real_client(real_stack: stack.Stack) -> AsyncIterator[client.Client]:
    async with client.connected(real_stack.nats_url) as connected:
        yield connected


@pytest.fixture(scope="session")
def transformers_oracle(model_dir: Path) -> oracle.Oracle:
    return oracle.Oracle(model_dir)


@pytest.fixture(scope="session")
def real_prompts(transformers_oracle: oracle.Oracle) -> list[prompts.Prompt]:
    """Twenty prompts that the oracle has answered."""
    made = transformers_oracle.make_prompts()
    transformers_oracle.prepare(made)
    return made


@pytest.fixture
def start_stack(tmp_path: Path) -> Iterator[StartStack]:
    """A function that starts a stack of the test's own; what is left of it is ended."""
    started: list[stack.Stack] = []

    def start(arguments: list[str], variables: Mapping[str, str] | None = None) -> stack.Stack:
        started.append(stack.Stack(arguments, variables or {}, tmp_path))
        return started[-1]

    yield start
    for each in started:
        each.close()
