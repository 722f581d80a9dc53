"""Shares of time: of each process, and of a token, from what was counted meanwhile."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.services.cli import profile_flame as flame
from slipstream.services.cli.profile_child import check_command, stacks_of
from slipstream.services.cli.profile_load import LoadShape, parse_load
from slipstream.services.cli.profile_report import (
    activities_of,
    report_of,
    table,
    token_activities,
)
from slipstream.shared.client.counters import ProcessSpan
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.common import Role

_BESIDE = Path(sys.executable).parent / "py-spy"
_FOUND = _BESIDE if _BESIDE.is_file() else shutil.which("py-spy")
_PY_SPY = None if _FOUND is None else Path(_FOUND)
_TIME = "slipstream_activity_seconds_total"
_REQUEST_TIME = "slipstream_request_activity_seconds_total"


def span(
    name: str, role: Role, seconds: float, cpu_s: float, counts: dict[str, float], pid: int = 0
) -> ProcessSpan:
    return ProcessSpan(WorkerId(name), role, pid, seconds, cpu_s, counts)


DECODE = span(
    "decode-1",
    "decode",
    10.0,
    9.0,
    {
        f"{_TIME} weights": 6.0,
        f"{_TIME} kv": 2.0,
        f"{_TIME} messages": 1.5,
        f"{_TIME} other": 0.5,
        f"{_REQUEST_TIME} weights": 24.0,
        f"{_REQUEST_TIME} waiting": 4.0,
        "slipstream_output_tokens_total": 400,
    },
)
SCHEDULER = span("scheduler-1", "scheduler", 10.0, 0.5, {"slipstream_queue_time_seconds sum": 2.0})


def test_a_worker_tells_its_activities_and_others_have_their_processor_time() -> None:
    assert 10.0 == sum(activities_of(DECODE).values())
    assert 6.0 == activities_of(DECODE)["weights"]
    assert {"messages": 0.5, "idle": 9.5} == {
        name: value for name, value in activities_of(SCHEDULER).items() if value
    }


def test_more_than_one_processor_is_no_more_than_all_of_the_time() -> None:
    busy = span("kv-1", "kv", 2.0, 5.0, {})

    assert (2.0, 0.0) == (activities_of(busy)["messages"], activities_of(busy)["idle"])


def test_a_token_waits_in_the_queue_and_at_the_worker() -> None:
    found = token_activities([DECODE, SCHEDULER])

    assert (24.0, 6.0) == (found["weights"], found["waiting"])


def test_shares_add_up() -> None:
    report = report_of([DECODE, SCHEDULER])

    assert pytest.approx(1.0) == sum(report["token_shares"].values())
    assert pytest.approx(0.8) == report["token_shares"]["weights"]
    assert pytest.approx(1000 * 30 / 400) == sum(report["token_ms"].values())
    for service in report["services"]:
        assert pytest.approx(1.0) == service["accounted"]
    assert "400 tokens in 10.0 s, each after 75.0 ms" in table(report)
    assert "80.0%" in table(report)


def test_what_was_not_told_is_missing_not_made_up() -> None:
    half = span("decode-1", "decode", 10.0, 1.0, {f"{_TIME} weights": 5.0})

    (service,) = report_of([half])["services"]

    assert 0.5 == service["accounted"]
    assert "no token was made" in table(report_of([half]))


# The load


def test_a_load_may_be_told_in_part() -> None:
    assert LoadShape(streams=3) == parse_load("streams=3")
    assert LoadShape(2, 10, 20) == parse_load("output=20, prompt=10,streams=2")


@pytest.mark.parametrize("text", ["", "8", "streams", "streams=0", "streams=-1", "rate=3"])
def test_a_load_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="streams=8,prompt=128,output=128"):
        parse_load(text)


# A command's stacks


def test_the_stacks_of_a_command_are_those_in_its_directories(tmp_path: Path) -> None:
    for name, ports in (("41-aa", '{"nats": ["nats://127.0.0.1:5001"]}'), ("412-bb", "{}")):
        folder = tmp_path / name / "nats"
        folder.mkdir(parents=True)
        (folder / "nats-server_9.ports").write_text(ports)
    (tmp_path / "41-cc" / "nats").mkdir(parents=True)  # not up yet
    half_written = tmp_path / "41-dd" / "nats"
    half_written.mkdir(parents=True)
    (half_written / "nats-server_9.ports").write_text(json.dumps({"nats": ["x"]})[:-3])

    assert ["nats://127.0.0.1:5001"] == stacks_of(41, tmp_path)
    assert [] == stacks_of(412, tmp_path)
    assert [] == stacks_of(7, tmp_path / "none")


def test_only_what_starts_stacks_and_ends_is_looked_at() -> None:
    check_command(["bench", "serve"])
    with pytest.raises(ConfigurationError, match=r"-- up .*bench and run.*--nats"):
        check_command(["up"])


# The flame graph


def test_the_first_decode_worker_is_drawn() -> None:
    processes = [
        span("decode-b", "decode", 1, 1, {}, pid=1),
        span("decode-a", "decode", 1, 1, {}, pid=os.getpid()),
        span("kv-a", "kv", 1, 1, {}, pid=2),
    ]

    assert os.getpid() == flame.process_to_draw(processes)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes of others are not seen here")
def test_a_process_elsewhere_is_said_to_be() -> None:
    away = span("decode-a", "decode", 1, 1, {}, pid=2**30)

    with pytest.raises(flame.FlameError, match="another host or container"):
        flame.process_to_draw([away])
    with pytest.raises(flame.FlameError, match="no decode worker"):
        flame.process_to_draw([span("kv-a", "kv", 1, 1, {}, pid=2)])


def test_without_py_spy_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigurationError, match=r"pip install 'slipstream\[profile\]'"):
        flame.find_program(tmp_path / "flame.svg")
    with pytest.raises(ConfigurationError, match=r"name a file\.svg"):
        flame.find_program(tmp_path / "flame.png")
    with pytest.raises(ConfigurationError, match="make it"):
        flame.find_program(tmp_path / "none" / "flame.svg")


async def test_why_a_process_could_not_be_looked_into_is_said(tmp_path: Path) -> None:
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\necho 'Error: Permission Denied' >&2\nexit 1\n")
    program.chmod(0o755)

    with pytest.raises(flame.FlameError, match=r"Permission Denied.*ptrace_scope"):
        await flame.draw(program, 1, 1.0, tmp_path / "flame.svg")


@pytest.mark.skipif(_PY_SPY is None, reason="py-spy is not installed")
def test_a_process_at_work_is_drawn(tmp_path: Path) -> None:
    assert _PY_SPY is not None, "else skipped"
    work = "def spin():\n    while True:\n        sum(range(1000))\nspin()"
    process = subprocess.Popen([sys.executable, "-c", work])
    try:
        asyncio.run(flame.draw(_PY_SPY, process.pid, 1.0, tmp_path / "flame.svg"))
    except flame.FlameError as error:
        if "ermission" in str(error):
            pytest.skip("this machine lets nobody look into processes")
        raise
    finally:
        process.kill()
        process.wait()

    drawn = (tmp_path / "flame.svg").read_text()
    assert "<svg" in drawn
    assert "spin" in drawn
