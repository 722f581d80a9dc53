"""Two schedulers as processes: the active one is killed, or frozen and woken, under load."""

import asyncio
from pathlib import Path

import pytest

from . import client, stack

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.timeout(180)]

_NAMES = ("scheduler-1", "scheduler-2")
_ARGUMENTS = [
    *("--engine", "fake", "--test-mode", "--kv-memory", "1MiB", "--draft", "0"),
    *("--scheduler", "2", "--log-level", "info"),
]
_WAIT_S = 30.0  # ten times what a request may pause


def active_of(found: stack.Stack) -> str | None:
    statuses = {name: found.status(name) for name in _NAMES}
    active = [name for name, each in statuses.items() if each and each.detail == "active"]
    return active[0] if len(active) == 1 else None


async def until_active(found: stack.Stack, *, other_than: str = "") -> str:
    async with asyncio.timeout(_WAIT_S):
        while (name := active_of(found)) in (None, other_than):
            await asyncio.sleep(0.05)
        assert name is not None
        return name


async def test_requests_outlive_kills_and_freezes_of_the_active_scheduler(tmp_path: Path) -> None:
    variables = {"SLIPSTREAM_FAKE_STEP_MS": "20", "SLIPSTREAM_NUM_SEATS": "8"}
    body = {"prompt": "Tell me", "max_tokens": 150, "ignore_eos": True, "temperature": 0}
    with stack.running(_ARGUMENTS, tmp_path, variables) as found:
        async with client.connected(found.nats_url) as asking:
            expected = client.token_ids_of(await asking.ask(body))
            for is_killed in (True, False):
                name = await until_active(found)
                asks = [asyncio.create_task(asking.ask(body)) for _ in range(16)]
                await asyncio.sleep(0.5)  # some run and some wait; which does not matter
                if is_killed:
                    found.kill(name)
                    await until_active(found, other_than=name)
                else:
                    with found.frozen(name):
                        answers = await asyncio.gather(*asks)
                    await until_active(found, other_than=name)
                answers = await asyncio.gather(*asks)

                assert [expected] * 16 == [client.token_ids_of(answer) for answer in answers]
