"""A stack without one of its layers, as `slipstream bench ablation` measures it."""

import asyncio
from typing import Any

import pytest

from slipstream.shared.config import DecodeConfig, FakeEngineConfig
from slipstream.shared.errors import ConfigurationError
from tests.integration.conftest import Start
from tests.integration.service_stack import NUM_BLOCKS, Client, ServiceStack, oracle, until

pytestmark = pytest.mark.nats

_ROLES = ("scheduler", "kv", "decode")


def _request(first: int, num_prompt: int, num_output: int) -> dict[str, Any]:  # Any: of all types
    return {
        "prompt_token_ids": [first, *(3 + idx % 250 for idx in range(num_prompt - 1))],
        "max_tokens": num_output,
        "ignore_eos": True,
        "temperature": 0,
    }


async def _order_of_endings(stack: ServiceStack, client: Client) -> list[str]:
    """Ask for a long answer, and for a short one while it is made; return which ended first."""
    ended: list[str] = []

    async def ask(name: str, first: int, num_output: int) -> None:
        request = _request(first, 20, num_output)
        answer = await client.ask("", **request)
        expected = oracle(request["prompt_token_ids"], num_output, ignore_eos=True)
        assert expected == list(answer.choices[0].token_ids)
        ended.append(name)

    long = asyncio.create_task(ask("long", 1, 400))
    runner = stack.one("decode")._parts.host.engine.runner
    await until(lambda: runner.num_forwards > 1)
    await ask("short", 2, 5)
    await long
    return ended


@pytest.mark.parametrize(
    ("is_continuous", "expected"), [(True, ["short", "long"]), (False, ["long", "short"])]
)
async def test_a_static_batch_ends_before_the_next_begins(
    start: Start, client: Client, *, is_continuous: bool, expected: list[str]
) -> None:
    slowly = FakeEngineConfig(step_ms=2)
    options = {"is_batching_continuously": is_continuous, "fake": slowly}
    stack = await start(*_ROLES, decode=options)

    assert expected == await _order_of_endings(stack, client)


async def test_a_static_batch_takes_all_that_waited(start: Start, client: Client) -> None:
    """More than a step has rows for: none of them waits for a third batch."""
    stack = await start(
        *_ROLES,
        scheduler={"prompt_window": 100_000},
        decode={
            "is_batching_continuously": False,
            "token_budget": 64,
            "speculation": "off",
            "fake": FakeEngineConfig(step_ms=2),
        },
    )
    first = asyncio.create_task(client.ask("", **_request(1, 20, 300)))
    runner = stack.one("decode")._parts.host.engine.runner
    await until(lambda: runner.num_forwards > 1)
    answers = await asyncio.gather(*(client.ask("", **_request(10 + i, 60, 100)) for i in range(6)))
    await first

    assert [100] * 6 == [each.usage.num_output_tokens for each in answers]
    # The first one's steps, six prompts, and a hundred steps of all six together.
    assert runner.num_forwards < 300 + 100 + 20


async def test_without_paging_a_sequence_holds_room_for_a_whole_context(
    start: Start, client: Client
) -> None:
    stack = await start(*_ROLES, decode={"is_paging": False, "fake": FakeEngineConfig(step_ms=5)})
    asking = asyncio.create_task(client.ask("", **_request(1, 20, 300)))
    host = stack.one("decode")._parts.host
    expected = min(NUM_BLOCKS, -(-host.model.config.max_context_length // 32))
    async with asyncio.timeout(10):
        while not (leases := (await stack.audit()).leases):
            await asyncio.sleep(0.02)

    (lease,) = leases
    assert expected == lease.num_blocks
    assert 300 == (await asking).usage.num_output_tokens


@pytest.mark.parametrize(("is_chunking", "num_steps"), [(True, 5), (False, 1)])
async def test_without_chunks_a_prompt_is_one_step(
    start: Start, client: Client, *, is_chunking: bool, num_steps: int
) -> None:
    options = {"is_chunking_prompts": is_chunking, "token_budget": 64}
    stack = await start(*_ROLES, decode=options)

    answer = await client.ask("", **_request(1, 300, 1))

    assert 1 == answer.usage.num_output_tokens
    assert num_steps == stack.one("decode")._parts.host.engine.runner.num_forwards


@pytest.mark.parametrize(
    "name",
    [
        *("is_sharing_heads", "is_fused", "is_paging"),
        *("is_batching_continuously", "is_chunking_prompts"),
    ],
)
def test_a_layer_is_left_out_in_test_mode_only(tmp_path: Any, name: str) -> None:
    # Any: as above
    with pytest.raises(ConfigurationError, match=r"--no-\S+ costs speed .* needs --test-mode"):
        DecodeConfig(cache_dir=tmp_path, arena_dir=tmp_path, **{name: False})
