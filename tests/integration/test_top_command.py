"""`slipstream top` on a running stack: for scripts, on a pipe, and before a person."""

import json
import signal
import subprocess
from typing import Any

import pytest

from .command_line import SLIPSTREAM, ask, generate, url_of
from .terminal import Terminal

pytestmark = [pytest.mark.nats, pytest.mark.timeout(90)]

_LEAVE_SCREEN = r"\x1b\[\?1049l"


def test_a_script_reads_one_snapshot(
    up: "subprocess.Popen[str]", environment: dict[str, str]
) -> None:
    url = url_of(up)
    with subprocess.Popen(
        [*SLIPSTREAM, "top", "--nats", url, "--once", "--json", "--interval", "4"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as watching:
        for _ in range(2):
            generate(url, environment, "hello " * 80, "--max-tokens", "30", "--temperature", "0")
        shown, _ = watching.communicate(timeout=20)
    snapshot = json.loads(shown)
    in_words = ask(environment, "top", "--nats", url, "--once", "--interval", "0.2")

    roles = ("decode", "draft", "gateway", "kv", "prefill", "scheduler")
    assert dict.fromkeys(roles, 1) == snapshot["services"]
    assert ["decode", "draft", "prefill"] == [each["role"] for each in snapshot["workers"]]
    assert {"ready"} == {each["state"] for each in snapshot["workers"]}
    (host,) = snapshot["hosts"]
    assert host["num_blocks"] == sum(host["blocks"].values())
    assert 0 < snapshot["ttft_ms"]["p50"] <= snapshot["ttft_ms"]["p95"]
    assert 0 < snapshot["tpot_ms"]["p50"]
    for words in ("tokens/s", "TTFT ms", snapshot["workers"][0]["worker_id"], host["host_id"]):
        assert words in in_words.stdout


def test_on_a_pipe_it_prints_a_line_each_interval_and_ends_in_order(
    up: "subprocess.Popen[str]", environment: dict[str, str]
) -> None:
    command = [*SLIPSTREAM, "top", "--nats", url_of(up), "--interval", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as top:
        assert top.stdout is not None
        lines = [top.stdout.readline() for _ in range(3)]
        top.send_signal(signal.SIGINT)

        assert 0 == top.wait(10)
    assert all(line.startswith("3 workers, 0 waiting") for line in lines), lines


def test_a_server_without_services_is_said_to_have_none(
    own_nats_server: Any, environment: dict[str, str]
) -> None:
    url = own_nats_server.url
    done = ask(environment, "top", "--nats", url, "--once", "--interval", "0.2")

    assert (1, "") == (done.returncode, done.stdout)
    assert f"no service answers at {url}; start a stack with `slipstream up`" in done.stderr


def test_a_person_sees_workers_come_and_leaves_with_q(
    up: "subprocess.Popen[str]", environment: dict[str, str]
) -> None:
    terminal = Terminal(environment, "top", "--nats", url_of(up), "--interval", "0.2")
    try:
        terminal.until("decode-[a-z0-9]{8}")
        assert not terminal.is_echoing
        terminal.resize(100, 30)
        terminal.until("KV of")
        terminal.type("xq")
        terminal.until(_LEAVE_SCREEN)

        assert 0 == terminal.process.wait(10)
        assert terminal.is_echoing
    finally:
        terminal.close()


def test_ctrl_c_leaves_the_terminal_as_it_was(
    up: "subprocess.Popen[str]", environment: dict[str, str]
) -> None:
    terminal = Terminal(environment, "top", "--nats", url_of(up), "--interval", "0.2")
    try:
        terminal.until("decode-[a-z0-9]{8}")
        terminal.interrupt()
        terminal.until(_LEAVE_SCREEN)

        assert 0 == terminal.process.wait(10)
        assert terminal.is_echoing
    finally:
        terminal.close()
