"""`slipstream bench serve` on the fake engine: its figures are those of the answers that came."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.measure.load.summary import percentile
from slipstream.shared.messages.codec import ClientAnswer, decoder_of
from slipstream.shared.messages.generate import Finished
from tests.integration.bench_command import run_bench
from tests.integration.conftest import Start

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

_FAKE = ("--engine", "fake", "--test-mode", "--model", "fake", "--kv-memory", "64MiB")
_SHORT = ("--seconds", "2", "--warmup", "0", "--rounds", "1", "--prompt", "40", "--output", "10")


async def _bench(tmp_path: Path, *options: str) -> tuple[dict[str, Any], str]:  # Any: JSON
    """Run the benchmark; return what --json holds, and what was printed."""
    path = tmp_path / "serve.json"
    status, printed, said = await run_bench(
        *("serve", *_FAKE, *_SHORT, *options, "--json", str(path)),
        variables={"SLIPSTREAM_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert 0 == status, said
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found, printed


@pytest.fixture
async def endings(nats_server: Any) -> AsyncIterator[list[Finished]]:
    """What every client of the server is told at the end. Any: a fixture's class."""
    heard: list[Finished] = []
    bus = await NatsBus.connect(nats_server.url, "tap")

    async def hear(incoming: Incoming) -> None:
        if b"finished" in incoming.payload:
            message = decoder_of(ClientAnswer).decode(incoming.payload)
            if isinstance(message, Finished):
                heard.append(message)

    await bus.subscribe("_INBOX.>", hear)
    yield heard
    await bus.close()


async def test_the_figures_are_what_the_stack_said_of_its_answers(
    start: Start, endings: list[Finished], nats_server: Any, tmp_path: Path
) -> None:
    await start("scheduler", "kv", "decode")
    options = ("--rate", "30", "--arrivals", "even", "--tenants", "a:3,b:1")

    found, _ = await _bench(tmp_path, "--url", nats_server.url, *options)

    (row,) = found["rows"]
    usages = [each.usage for each in endings]
    assert "running" == row["mode"]
    assert (60, 0, 0) == (row["num_requests"], row["num_failed"], row["num_unfinished"])
    assert 60 == len(endings)
    assert row["num_prompt_tokens"] == sum(each.num_prompt_tokens for each in usages)
    assert row["num_cached_tokens"] == sum(each.num_cached_tokens for each in usages) == 0
    queue_ms = sorted(each.timings.queue_ms for each in endings)
    for name, value in row["queue_ms"].items():
        assert pytest.approx(percentile(queue_ms, float(name[1:]))) == value
    # The client sees what the scheduler saw, and the way there and back.
    ttft_ms = percentile(sorted(each.timings.ttft_ms for each in endings), 50)
    assert ttft_ms < row["ttft_ms"]["p50"] < ttft_ms + 500
    num_tokens = sum(each.num_output_tokens for each in usages)
    assert 0.8 * num_tokens <= row["throughput_tok_s"] * 2 <= num_tokens
    of_tenants = row["by_tenant"]
    assert {"a", "b"} == of_tenants.keys()
    assert 60 == sum(each["num_requests"] for each in of_tenants.values())
    assert pytest.approx(row["throughput_tok_s"]) == sum(
        each["throughput_tok_s"] for each in of_tenants.values()
    )
    assert None is row["in_process_throughput_tok_s"]


@pytest.mark.slow
async def test_a_stack_is_measured_beside_its_engine(tmp_path: Path) -> None:
    found, printed = await _bench(
        tmp_path, *("--streams", "2,4", "--rounds", "2", "--plot", str(tmp_path / "plots"))
    )

    assert [2, 4] == [row["streams"] for row in found["rows"]]
    for row in found["rows"]:
        assert ("aggregated", None, 0) == (row["mode"], row["rate"], row["num_failed"])
        assert row["num_requests"] > 2 * row["streams"]
        for name in ("ttft_ms", "tpot_ms", "itl_ms", "queue_ms"):
            assert 0 < row[name]["p50"] <= row[name]["p95"] <= row[name]["p99"]
        engine = row["in_process_throughput_tok_s"]
        assert engine > 0
        assert row["overhead_ttft_ms"] == row["ttft_ms"]["p50"] - row["in_process_ttft_ms"]["p50"]
        low, high = row["throughput_ratio_interval"]
        assert low <= row["throughput_ratio"] <= high
        assert 0 < row["client_cpu_share"]
    assert "engine alone" in printed
    for name in ("latency", "timeline"):
        assert (tmp_path / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
async def test_two_modes_are_tuned_and_compared(tmp_path: Path) -> None:
    found, printed = await _bench(
        tmp_path,
        *("--compare", "aggregated,disaggregated", "--rate", "10,20", "--plot", str(tmp_path)),
        *("--budgets", "32,256", "--tune-seconds", "1", "--no-in-process"),
    )

    modes = ("aggregated", "disaggregated")
    assert [(mode, rate) for rate in (10.0, 20.0) for mode in modes] == [
        (row["mode"], row["rate"]) for row in found["rows"]
    ]
    for mode in modes:
        tries = [each for each in found["tuning"] if each["mode"] == mode]
        assert [32, 256] == [each["token_budget"] for each in tries]
        (taken,) = (each for each in tries if each["is_taken"])
        assert taken["goodput"] == max(each["goodput"] for each in tries)
        assert taken["token_budget"] == found["settings"]["modes"][mode]["token_budget"]
    settings = found["settings"]["modes"]
    assert [("local", 0), ("remote", 1)] == [
        (settings[mode]["route"], settings[mode]["num_prefill"]) for mode in modes
    ]
    assert "goodput" in {each["figure"] for each in found["crossover"]}
    assert re.search(r"^ttft_ms p50: ", printed, re.MULTILINE)
    assert (tmp_path / "crossover.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
async def test_a_trace_is_scaled_to_the_context_and_the_machine(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": idx * 1000, "input_length": 1024, "output_length": 64, "hash_ids": [0, idx]}
        for idx in range(1, 4000)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))

    found, _ = await _bench(
        tmp_path,
        *("--trace", str(trace), "--context", "272", "--load", "0.3", "--no-in-process"),
    )

    (row,) = found["rows"]
    assert 0.25 == found["settings"]["trace_length_factor"]
    assert pytest.approx(0.3 * found["highest_rate"]) == row["rate"]
    assert row["num_requests"] == round(2 * row["rate"])
    assert row["num_prompt_tokens"] == 256 * row["num_requests"]
    # The first 128 tokens of all prompts are the same: four blocks, once they are there.
    assert 0.4 < row["num_cached_tokens"] / row["num_prompt_tokens"] <= 0.5
