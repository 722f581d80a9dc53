"""`slipstream profile` on the fake engine: a stack of its own, one that runs, and a command's."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

_FAKE = ("--engine", "fake", "--test-mode", "--model", "fake", "--kv-memory", "64MiB")
_COMMAND_S = 90.0


async def _profile(tmp_path: Path, *options: str) -> tuple[int | None, dict[str, Any], str]:
    """Return status, what --json holds, and all that was printed. Any: JSON."""
    path = tmp_path / "profile.json"
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM_")
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "slipstream.services.cli.main", "profile"),
        *("--json", str(path), *options),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**environment, "SLIPSTREAM_CACHE_DIR": str(tmp_path / "cache")},
    )
    try:
        async with asyncio.timeout(_COMMAND_S):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    found = json.loads(path.read_bytes()) if path.exists() else {}
    return process.returncode, found, said.decode()


def _check_sums(found: dict[str, Any]) -> None:  # Any: as above
    for service in found["services"]:
        assert pytest.approx(1.0, abs=0.05) == service["accounted"], service["service"]
    assert pytest.approx(1.0) == sum(found["token_shares"].values())


@pytest.mark.slow
async def test_under_a_load_all_services_tell_and_add_up(tmp_path: Path) -> None:
    status, found, said = await _profile(
        tmp_path,
        *(*_FAKE, "--load", "streams=4,prompt=40,output=40", "--seconds", "3"),
        *("--prefill", "1", "--draft", "1", "--route", "remote"),
    )

    assert 0 == status, said
    assert ["decode", "draft", "kv", "prefill", "scheduler"] == [
        each["role"] for each in found["services"]
    ]
    _check_sums(found)
    assert found["output_tokens"] > 100
    # So many requests at any moment, but for the pauses between them and the way there and back.
    assert 2.0 < found["request_seconds"] / found["seconds"] < 4.2
    decode = found["services"][0]["shares"]
    assert decode["arithmetic"] > 0.1  # the fake engine's sleep
    assert decode["sampling"] > 0
    assert decode["weights"] == decode["kv"] == 0


@pytest.mark.slow
async def test_the_stack_of_a_command_is_found(tmp_path: Path) -> None:
    status, found, said = await _profile(
        tmp_path,
        *("--", "bench", "serve", *_FAKE, "--seconds", "3", "--warmup", "0", "--rounds", "1"),
        *("--streams", "2", "--prompt", "20", "--output", "20", "--no-in-process"),
    )

    assert 0 == status, said
    assert ["decode", "kv", "scheduler"] == [each["role"] for each in found["services"]]
    _check_sums(found)
    assert found["output_tokens"] > 50
    assert "aggregated" in said  # the command's own report
    assert "a token" in said


async def test_a_server_without_a_stack_is_an_error(nats_server: Any, tmp_path: Path) -> None:
    # Any: a fixture's class
    status, found, said = await _profile(tmp_path, "--nats", nats_server.url, "--seconds", "0.5")

    assert (1, {}) == (status, found)
    assert "no service answers on" in said
    assert "slipstream up" in said
