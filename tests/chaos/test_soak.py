"""
Mixed load for minutes, or an hour (`make soak`): nothing grows, nothing fails, every text is right.

SOAK_MINUTES, SOAK_ENGINE (`fake` or `real`) and SOAK_JSON (a file for all samples) say how.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from slipstream.shared.bus.nats_bus import NatsBus
from tests.chaos.crowd import Crowd, gathered
from tests.chaos.soak_load import SoakLoad
from tests.chaos.soak_watch import SoakWatch, watching
from tests.end_to_end import client, http_client, scrape, stack

_MINUTES = float(os.environ.get("SOAK_MINUTES") or 5)
_IS_FAKE = (os.environ.get("SOAK_ENGINE") or "fake") == "fake"
_JSON = os.environ.get("SOAK_JSON") or None
_NUM_TOGETHER = 14
_ANSWER_S = 60.0
# What is kept for a minute (ended streams, tombstones, results here) has come and gone by then, and
# heaps have the size that they keep.
_WARM_SHARE, _MAX_WARM_S = 0.4, 300.0
_NUM_SAMPLES = 240  # an hour has one every 15 s
_HELD = ("leases", "granted", "leased", "committed", "quarantined")
_ENDINGS = {"length", "cancelled", "abort"}

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.timeout(_MINUTES * 60 + 300)]


async def test_nothing_grows_and_nothing_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    duration_s = _MINUTES * 60
    warm_s = min(_WARM_SHARE * duration_s, _MAX_WARM_S)
    with stack.running(_arguments(), tmp_path, _variables()) as running:
        async with gathered(running.nats_url, 1, _ANSWER_S) as (crowd, asking):
            async with watching(running, asking, duration_s / _NUM_SAMPLES) as watch:
                load = await _loaded(running, crowd, asking, duration_s)
            books = await asking.idle_audit()
            held = await _held_at_last(running)
        log = "".join(running.lines)
    _tell(watch, load, crowd, warm_s, capsys)

    assert [] == load.wrong
    assert [] == crowd.wrong
    assert set(crowd.outcomes) <= _ENDINGS, crowd.outcomes
    assert min(load.num_asked.values()) >= _MINUTES, load.num_asked
    assert [] == watch.problems
    assert dict.fromkeys(_HELD, 0) == {each: books[f"num_{each}"] for each in _HELD}
    assert 0 == held
    assert [] == watch.growing(warm_s)
    assert "kv_mismatch" not in log


async def _loaded(
    running: stack.Stack, crowd: Crowd, asking: client.Client, duration_s: float
) -> SoakLoad:
    """Put the stack under load; return who did it."""
    bus = await NatsBus.connect(running.nats_url, "soak")
    try:
        async with http_client.connected(running.http_url) as http:
            (model,) = (await http.get("/v1/models")).body["data"]
            load = SoakLoad(asking, crowd, http, bus, model["id"])
            await load.run(duration_s, _NUM_TOGETHER, is_fake=_IS_FAKE)
    finally:
        await bus.close()
    return load


async def _held_at_last(running: stack.Stack) -> float:
    """Return how many requests and submissions are still held once nobody asks any more."""
    names = [each.stem for each in (running.run_dir / "status").glob("*.json")]
    for _ in range(100):
        shown = await scrape.scrape(running, names)
        held = shown.total("requests") + shown.total("submissions")
        if not held:
            break
        await asyncio.sleep(0.2)
    return held


def _tell(
    watch: SoakWatch,
    load: SoakLoad,
    crowd: Crowd,
    warm_s: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Show the figures, whatever comes of them."""
    said = f"{_MINUTES:g} minutes, {load.num_asked.total()} requests: {dict(load.num_asked)}"
    with capsys.disabled():
        print(f"\n{said}\n{watch.table(warm_s)}")  # noqa: T201 - what the soak is run for
    if _JSON:
        more = {"num_asked": dict(load.num_asked), "outcomes": dict(crowd.outcomes)}
        Path(_JSON).write_text(watch.as_json(warm_s, more), encoding="utf-8")


def _arguments() -> list[str]:
    options = ["--prefill", "2", "--decode", "2", "--metrics-port", "0", "--log-level", "warning"]
    return [*options, "--test-mode", "--engine", "fake"] if _IS_FAKE else options


def _variables() -> Mapping[str, str]:
    # Or the server would hold a day's results, as it should.
    kept = {"SLIPSTREAM_RESULT_KEEP_S": "60"}
    fake = {"SLIPSTREAM_KV_BLOCKS": "768", "SLIPSTREAM_FAKE_STEP_MS": "2"}
    return {**kept, **fake} if _IS_FAKE else kept
