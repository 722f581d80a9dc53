"""What the services count is what their clients saw, and at the end nothing is held."""

import asyncio
import socket
import subprocess
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from . import client, conftest, stack
from .scrape import Scrape, scrape, url_of

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

_SERVICES = ("scheduler", "kv", "prefill", "decode", "draft", "gateway")
_FAKE = ["--test-mode", "--engine", "fake"]
# Forty blocks of 32 tokens: a dozen stories don't fit at once.
_SHORT_OF_BLOCKS = ["--kv-memory", "20KiB"]
_NUM_BLOCKS = 40
_NUM_STORIES = 12
_SETTLE_S = 10.0
# Random tokens repeat a single one often enough for a proposal, hardly ever two.
_VARIABLES = {"SLIPSTREAM_FAKE_STEP_MS": "4", "SLIPSTREAM_MIN_NGRAM": "1"}

Answers = list[dict[str, Any]]  # Any: JSON


async def test_counters_say_what_clients_saw_and_gauges_return_to_zero(
    start_stack: conftest.StartStack,
) -> None:
    running = start_stack([*_FAKE, *_SHORT_OF_BLOCKS, "--metrics-port", "0"], _VARIABLES)
    async with client.connected(running.nats_url) as asking:
        asked = [asyncio.create_task(_story(asking, number)) for number in range(_NUM_STORIES)]
        busy = await _scrape_until(running, _is_busy)
        stories = await asyncio.gather(*asked)
        served = await _scrape_until(running, _is_idle)
        others = [*await _answered(asking), *await _unanswered(asking)]
        ended = await _scrape_until(running, lambda found: _is_idle(found) and _has_gone(found, 8))
        await asyncio.sleep(0.1)
        later = await scrape(running, _SERVICES)

    assert busy.total("kv_blocks", state="free") < _NUM_BLOCKS
    _check_tokens(served, stories)
    _check_times(served, stories)
    _check_endings(ended, [*stories, *others])
    _check_idle(ended)
    for worker in ("prefill", "decode"):
        work_s = [each.one(worker, "work_seconds_total") for each in (ended, later)]
        assert work_s[0] == work_s[1], "time without work counts for nothing"
    assert 0 == running.stop()


async def test_a_service_that_is_started_again_is_read_where_it_was(
    start_stack: conftest.StartStack,
) -> None:
    first_port = _first_free_port(len(_SERVICES))
    arguments = [*_FAKE, "--kv-memory", "1MiB", "--metrics-port", str(first_port)]
    running = start_stack(arguments)
    urls = {name: url_of(running, name) for name in _SERVICES}
    old_pid = running.kill("decode")
    running.wait_restarted("decode", old_pid)
    found = await scrape(running, _SERVICES)

    assert {
        name: f"http://127.0.0.1:{first_port + number}/metrics"
        for number, name in enumerate(_SERVICES)
    } == urls
    assert urls["decode"] == url_of(running, "decode")
    infos = [sample for each in found.samples.values() for sample in each]
    roles = [sample.labels["role"] for sample in infos if sample.name == "slipstream_info"]
    assert list(_SERVICES) == roles
    assert 0 == running.stop()


def test_a_stack_without_the_option_serves_no_metrics(start_stack: conftest.StartStack) -> None:
    running = start_stack([*_FAKE, "--kv-memory", "1MiB"])

    for name in _SERVICES:
        status = running.status(name)
        assert status is not None
        assert status.metrics_url is None
    assert not [line for line in running.log if line["event"] == "metrics_served"]
    assert 0 == running.stop()


def test_a_port_that_is_taken_ends_a_service_with_the_reason() -> None:
    """Before it looks for anything else: there is no NATS server here."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [stack.SLIPSTREAM, "draft", "--metrics-port", str(port), "--log-json"]
        done = subprocess.run(
            command,
            env=stack.marked_environment("none", {}),
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    assert 1 == done.returncode
    assert f"--metrics-port {port} on 127.0.0.1 is taken" in done.stdout


async def _story(asking: client.Client, number: int) -> dict[str, Any]:
    """Ask for a long answer, streamed or not, by either route."""
    body = {
        "prompt": f"{number}: once upon a time",
        "max_tokens": 150,
        "ignore_eos": True,
        "seed": number,
        "route": "remote" if number % 2 else "local",
    }
    if number % 3:
        return await asking.ask(body)
    return (await asking.stream(body)).ending


async def _answered(asking: client.Client) -> Answers:
    """One that half of all tokens stop, and one that is cancelled after its first frame."""
    stopped = await asking.ask({"prompt": "Stop", "stop_token_ids": [*range(128)], "seed": 1})
    last: dict[str, Any] = {}
    async for message in asking.messages({"prompt": "Go", "max_tokens": 900, "ignore_eos": True}):
        if message["type"] == "token_frame" and last.get("type") == "accepted":
            await asking.cancel(message["request_id"])
        last = message
    return [stopped, last]


async def _unanswered(asking: client.Client) -> Answers:
    """Some that are refused at the door, some that are admitted and then fail."""
    bodies = [
        {"prompt": "Hello", "temperature": 9},
        {"prompt": "Hello", "max_tokens": 0},
        {"prompt": "Hello", "model": "other"},
        {"prompt": "Hello", "max_tokens": 2000},
        {"prompt": "Hello", "deadline_ms": 1},
        {"prompt": "Hello", "deadline_ms": 300, "max_tokens": 1000, "ignore_eos": True},
    ]
    return [await asking.ask(body) for body in bodies]


def _is_busy(found: Scrape) -> bool:
    return bool(
        found.one("decode", "requests", state="running")
        and found.one("scheduler", "requests", state="running")
        and found.one("kv", "kv_leases")
    )


def _is_idle(found: Scrape) -> bool:
    held = ("leased", "committed", "quarantined")
    is_held = any(found.total("kv_blocks", state=state) for state in held)
    return not found.total("requests") and not is_held


def _has_gone(found: Scrape, num_requests: int) -> bool:
    """Tell whether so many requests have ended since the stories."""
    names = ("finished_total", "failed_total", "refused_total")
    return sum(found.total(name) for name in names) >= _NUM_STORIES + num_requests


async def _scrape_until(running: stack.Stack, is_so: Callable[[Scrape], bool]) -> Scrape:
    """Return the first scrape that is so, or the last one."""
    deadline_s = asyncio.get_running_loop().time() + _SETTLE_S
    while True:
        found = await scrape(running, _SERVICES)
        if is_so(found) or asyncio.get_running_loop().time() > deadline_s:
            return found
        await asyncio.sleep(0.02)


def _check_tokens(found: Scrape, answers: Answers) -> None:
    def used(name: str) -> int:
        return sum(each["usage"].get(f"num_{name}", 0) for each in answers)

    assert {
        "prompt": used("prompt_tokens"),
        "cached": used("cached_tokens"),
        "output": _NUM_STORIES * 150,
    } == {kind: found.total(f"{kind}_tokens_total") for kind in ("prompt", "cached", "output")}
    assert used("preemptions") == found.total("preemptions_total")
    assert used("preemptions") > 0, "the cache was never short"
    drafts = found.by("outcome", "draft_tokens_total")
    assert used("drafted_tokens") == drafts["proposed"]
    assert used("tested_tokens") == drafts["tested"]
    assert used("accepted_tokens") == drafts.get("accepted", 0)
    assert drafts["offered"] >= drafts["proposed"] >= drafts["tested"] > 0
    assert 0 == found.total("nonfinite_rows_total")


def _check_times(found: Scrape, answers: Answers) -> None:
    for metric, field in (
        ("time_to_first_token_seconds", "ttft_ms"),
        ("time_per_output_token_seconds", "tpot_ms"),
        ("queue_time_seconds", "queue_ms"),
    ):
        assert _NUM_STORIES == found.total(f"{metric}_count")
        said_s = sum(each["timings"].get(field, 0) for each in answers) / 1000
        assert pytest.approx(said_s, rel=1e-3, abs=1e-4) == found.total(f"{metric}_sum")
    for worker in ("prefill", "decode"):
        busy_s = found.one(worker, "engine_busy_seconds_total")
        num_steps = found.one(worker, "batch_size_count")
        assert num_steps * 0.004 <= busy_s <= found.one(worker, "work_seconds_total")
        assert num_steps <= found.one(worker, "batch_size_sum")


def _check_endings(found: Scrape, answers: Answers) -> None:
    finished: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for each in answers:
        if each["type"] == "failed":
            # Only what was admitted has an id.
            (failed if each.get("request_id") else refused)[each["code"]] += 1
        else:
            ending = each if each["type"] == "finished" else each["choices"][0]
            finished[ending["finish_reason"]] += 1
    assert finished == found.by("reason", "finished_total")
    assert failed == found.by("code", "failed_total")
    assert refused == found.by("reason", "refused_total")
    assert {"length": _NUM_STORIES, "stop": 1, "abort": 1} == finished
    assert {"kv_too_large": 1, "deadline_exceeded": 2} == failed
    assert {"invalid_request": 2, "model_not_found": 1} == refused


def _check_idle(found: Scrape) -> None:
    assert {} == found.by("state", "requests")
    assert {"free", "cached", "granted"} >= set(found.by("state", "kv_blocks"))
    assert _NUM_BLOCKS == found.total("kv_blocks") == found.total("kv_pool_blocks")
    for name in ("kv_leases", "kv_lease_age_seconds", "queue_age_seconds"):
        assert 0 == found.total(name), name
    resident = [
        sample.value
        for samples in found.samples.values()
        for sample in samples
        if sample.name == "process_resident_memory_bytes"
    ]
    assert len(_SERVICES) == len(resident)
    assert min(resident) > 10 * 2**20


def _first_free_port(num_ports: int) -> int:
    """Return the first of so many ports in a row that nobody has now."""
    for first in range(20_000, 30_000, num_ports):
        if all(_is_free(first + number) for number in range(num_ports)):
            return first
    raise AssertionError("no ports are free")


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
