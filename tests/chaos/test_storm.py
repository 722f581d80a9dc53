"""
Random services die under load, every two seconds, and other things happen to them: nothing is lost.

`CHAOS_PART` takes a part of the long run's load and time, `CHAOS_SEED` another storm, and
`CHAOS_REPORT` names a file for its figures (docs/reliability.md).
"""

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
import msgspec
import nats
import pytest

from slipstream.client.async_client import AsyncClient
from slipstream.client.retries import Retries
from slipstream.shared.measure.load.traces import Lengths, TracedRequest, fit, read_requests
from tests.chaos.storm_clients import (
    PlainReader,
    Told,
    Undisturbed,
    ask_http,
    ask_library,
    make_prompt,
)
from tests.chaos.storm_plan import Blow, plan
from tests.chaos.storm_report import Report, report_of
from tests.chaos.storm_world import NUM_BLOCKS, World, raging
from tests.end_to_end import client

pytestmark = [pytest.mark.nats]

_SLICE = Path(__file__).parents[2] / "shared" / "measure" / "slices" / "azure_conv_2023.csv"
_PART = float(os.environ.get("CHAOS_PART", "1"))
_SEED = int(os.environ.get("CHAOS_SEED", "1"))
_MAX_NUM_TOKENS = 400
_STEP_MS = 40.0  # so that streams last for seconds, and are hit
_ANSWER_S = 90.0
_SETTLE_S = 40.0
_MAX_RECOVERY_S = 3.0
_ROLES = ("scheduler", "kv", "prefill", "decode", "draft", "gateway")


@dataclass
class Storm:
    """What happens, and what came of it."""

    num_requests: int
    blows_to_come: list[Blow]
    is_small: bool = False
    step_ms: float = _STEP_MS
    told: list[Told] = field(default_factory=list)
    blows: list[tuple[float, str, str]] = field(default_factory=list)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_storm_loses_nothing(tmp_path: Path) -> None:
    storm = Storm(round(500 * _PART), plan(_SEED, round(90 * _PART)))
    report = await _weather(storm, tmp_path)
    _tell(report)

    _check(report)
    assert report.recovery_p95_s < _MAX_RECOVERY_S
    if _PART >= 1:
        assert min(report.kills[role] for role in _ROLES) >= 10
        assert report.kills["nats"] >= 3


@pytest.mark.timeout(90)
async def test_a_shower_loses_nothing(tmp_path: Path) -> None:
    """One process of each role: whoever dies is waited for."""
    roles = ("decode", "scheduler", "kv")
    blows = [Blow(0.7 * (1 + number), "kill", role) for number, role in enumerate(roles)]
    storm = Storm(12, blows, is_small=True, step_ms=10.0)
    report = await _weather(storm, tmp_path)

    _check(report)
    assert dict.fromkeys(roles, 1) == report.kills


def _tell(report: Report) -> None:
    print(report.table())  # noqa: T201 - the figures are what it is run for
    if (path := os.environ.get("CHAOS_REPORT")) is not None:
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))


def _check(report: Report) -> None:
    assert [] == report.lost
    assert [] == report.left_over
    assert [] == report.problems


async def _weather(storm: Storm, directory: Path) -> Report:
    began_s = time.monotonic()
    async with raging(directory, _SEED, storm.step_ms, is_small=storm.is_small) as world:
        started_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(_ask_all(world, storm))
            group.create_task(_strike_all(world, storm))
        seconds = time.monotonic() - started_s
        await world.until_ready()
        problems = await _problems(world)
    assert "kv_mismatch" not in world.log, f"after {time.monotonic() - began_s:.0f} s"
    return report_of(
        storm.told,
        storm.blows,
        seconds,
        undisturbed=Undisturbed(directory / "cache"),
        num_skipped=world.num_skipped,
        left_over=world.left_over,
        problems=problems,
    )


async def _strike_all(world: World, storm: Storm) -> None:
    started_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for blow in storm.blows_to_come:
            await asyncio.sleep(max(0.0, started_s + blow.at_s - time.monotonic()))
            group.create_task(_strike(world, storm, blow))


async def _strike(world: World, storm: Storm, blow: Blow) -> None:
    # Killed again only after it was ready once: whoever is just starting is waited for.
    deadline_s = time.monotonic() + _SETTLE_S
    at = time.monotonic()
    while await world.strike(blow) is None and time.monotonic() < deadline_s:
        await asyncio.sleep(0.1)
        at = time.monotonic()
    storm.blows.append((at, blow.fault, blow.role))


async def _ask_all(world: World, storm: Storm) -> None:
    """Replay a trace: its lengths, and its arrivals stretched to the storm's length."""
    requests = read_requests(_SLICE)
    lengths = fit([each.lengths for each in requests], _MAX_NUM_TOKENS)
    seconds = storm.blows_to_come[-1].at_s
    random = Random(_SEED)
    connection = await nats.connect(
        world.nats_url, max_reconnect_attempts=-1, reconnect_time_wait=0.1
    )
    retries = Retries(max_num_retries=30, longest_s=1.0)
    async with (
        AsyncClient(world.nats_url, retries=retries) as library,
        httpx.AsyncClient(base_url=world.http_url) as http,
        asyncio.TaskGroup() as group,
    ):
        started_s = time.monotonic()
        for number, at_s in enumerate(_moments(requests, storm.num_requests, seconds)):
            await asyncio.sleep(max(0.0, started_s + at_s - time.monotonic()))
            told = _told(("library", "plain", "http")[number % 3], random, lengths, number)
            storm.told.append(told)
            match told.kind:
                case "library":
                    group.create_task(ask_library(library, told, _ANSWER_S))
                case "plain":
                    group.create_task(PlainReader(connection, told).ask(_ANSWER_S))
                case _:
                    group.create_task(ask_http(http, told, _ANSWER_S))
    await connection.close()


def _moments(requests: Sequence[TracedRequest], num_requests: int, seconds: float) -> list[float]:
    times = [each.at_s or 0.0 for each in requests]
    first, span = min(times), max(times) - min(times)
    rounds = -(-num_requests // len(times))
    whole = [
        (number + (at - first) / span) / rounds for number in range(rounds) for at in sorted(times)
    ]
    return [at * seconds * len(whole) / num_requests for at in whole[:num_requests]]


def _told(kind: str, random: Random, lengths: list[Lengths], number: int) -> Told:
    each = lengths[number % len(lengths)]
    prompt = make_prompt(random, each.num_prompt_tokens)
    return Told(kind, prompt, max(1, each.num_output_tokens))


async def _problems(world: World) -> list[str]:
    """Return what is wrong with the books of each host, once nobody holds anything."""
    problems = []
    async with client.connected(world.nats_url) as asking:
        for host_id in await asking.host_ids(world.num_hosts):
            books = await asking.idle_audit(_SETTLE_S, host_id)
            problems += books.get("problems", [])
            if NUM_BLOCKS != books["num_free"] + books["num_cached"]:
                problems.append(f"blocks of {host_id} are not home: {books}")
    return problems
