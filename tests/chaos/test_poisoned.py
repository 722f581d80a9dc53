"""A request that ends every worker it is computed on ends itself, and none of its neighbours."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from tests.chaos.crowd import Asked, gathered
from tests.end_to_end import stack

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

_POISON = 7  # no letter: nobody else says it
_NUM_NEIGHBOURS = 31
_ANSWER_S = 60.0
_OPTIONS = ["--test-mode", "--engine", "fake", "--decode", "2", "--log-level", "warning"]


@pytest.mark.slow
async def test_a_poisoned_request_ends_alone(tmp_path: Path) -> None:
    variables = {
        "SLIPSTREAM_ABORT_TOKEN_ID": str(_POISON),
        "SLIPSTREAM_FAKE_STEP_MS": "10",
        "SLIPSTREAM_KV_BLOCKS": "512",
    }
    with stack.running(_OPTIONS, tmp_path, variables) as running:
        async with gathered(running.nats_url, 1, _ANSWER_S) as (crowd, asking):
            lengths = Random(1)
            async with asyncio.TaskGroup() as group:
                neighbours = [
                    group.create_task(
                        crowd.ask(lengths.randrange(4, 200), lengths.randrange(100, 300))
                    )
                    for _ in range(_NUM_NEIGHBOURS)
                ]
                poisoned = Asked([*b"take this", _POISON])
                group.create_task(crowd.ask_for(poisoned, 50, route="local"))
            books = await asking.idle_audit()
        log = running.log

    assert "worker_crashed" == poisoned.outcome
    assert 3 == poisoned.endings[0]["attempt"]
    assert ["length"] * _NUM_NEIGHBOURS == [each.result().outcome for each in neighbours]
    assert [] == crowd.wrong
    assert [] == books.get("problems", [])
    assert 512 == books["num_free"] + books["num_cached"]
    charged = [line["num_charges"] for line in log if line.get("event") == "death_charged"]
    assert 3 == max(charged)
    assert 1 == charged.count(3), "a neighbour was charged as often"
