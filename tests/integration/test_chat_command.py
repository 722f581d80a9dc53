"""`slipstream chat` on a pipe and at a terminal, with a stack on the fake engine."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .command_line import SLIPSTREAM, ask, url_of
from .terminal import Terminal

pytestmark = [pytest.mark.nats, pytest.mark.timeout(90)]

_GREEDY = ("--temperature", "0", "--max-tokens", "12")


def _piped(
    environment: dict[str, str], lines: str, *arguments: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*SLIPSTREAM, "chat", *arguments],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=30,
    )


def test_each_line_of_a_pipe_is_a_turn(
    up: "subprocess.Popen[str]", environment: dict[str, str], tmp_path: Path
) -> None:
    url, saved = url_of(up), tmp_path / "chat.json"
    lines = f"hello\n\nand again\n/save {saved}\n/reset\nhello\n"
    done = _piped(environment, lines, "--nats", url, *_GREEDY)
    in_json = _piped(environment, "hello\nand again\n", "--nats", url, *_GREEDY, "--json")
    alone = ask(environment, "generate", "hello", "--nats", url, *_GREEDY, "--json")
    refused = _piped(environment, "hello\n", "--nats", url, "--temperature", "-1")

    assert 0 == done.returncode, done.stderr
    messages = json.loads(saved.read_text())
    assert ["user", "assistant"] * 2 == [each["role"] for each in messages]
    first, second, third = [json.loads(each) for each in in_json.stdout.splitlines()] + [
        json.loads(alone.stdout)
    ]
    assert first["text"] == third["text"] == messages[1]["content"]
    assert second["text"] == messages[3]["content"]
    assert f"{first['text']}\n{second['text']}\n{first['text']}\n" == done.stdout
    assert (1, "") == (refused.returncode, refused.stdout)
    assert "temperature" in refused.stderr


def test_without_a_scheduler_it_says_what_to_start(
    own_nats_server: Any, environment: dict[str, str]
) -> None:
    done = _piped(environment, "hello\n", "--nats", own_nats_server.url)

    assert (1, "") == (done.returncode, done.stdout)
    assert "start one with `slipstream up`" in done.stderr
    assert 1 == done.stderr.count("\n")


@pytest.fixture
def terminal(up: "subprocess.Popen[str]", environment: dict[str, str]) -> Iterator[Terminal]:
    made = Terminal(environment, "chat", "--nats", url_of(up), "--temperature", "0", "--seed", "1")
    yield made
    made.close()


def test_a_person_asks_cancels_and_leaves(terminal: Terminal) -> None:
    terminal.until(r"takes in [\d,]+ tokens")
    terminal.until("> ")
    terminal.type("hello\n")
    figures = terminal.until(r"\d+ tokens, [\d.]+ tokens/s, first after \d+ ms")
    terminal.until("> ")
    terminal.type("/help\n")
    terminal.until("/save FILE")
    terminal.until("> ")
    terminal.type("/nonsense\n")
    terminal.until("slipstream: /nonsense is none of")
    terminal.until("> ")
    terminal.type("\x04")

    assert "\x1b[2m" in figures, "figures are dim"
    assert 0 == terminal.process.wait(10)


def test_ctrl_c_cancels_the_answer_and_a_second_one_leaves(
    up: "subprocess.Popen[str]", environment: dict[str, str]
) -> None:
    url = url_of(up)
    terminal = Terminal(
        environment, "chat", "--nats", url, "--max-tokens", "4000", "--temperature", "1"
    )
    try:
        terminal.until("> ")
        terminal.type("hello\n")
        terminal.until(r"hello\r\n.{20}")
        terminal.interrupt()
        terminal.until("cancelled, and no part of the chat")
        held = ask(environment, "workers", "--nats", url, "--json")
        terminal.until("> ")
        terminal.interrupt()

        assert 130 == terminal.process.wait(10)
    finally:
        terminal.close()
    assert [0] * 3 == [each["num_held"] for each in json.loads(held.stdout)]


def test_a_chat_that_is_ended_cancels_its_answer(
    up: "subprocess.Popen[str]", environment: dict[str, str]
) -> None:
    url = url_of(up)
    command = [*SLIPSTREAM, "chat", "--nats", url, "--max-tokens", "4000", "--temperature", "1"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write("hello\n")
        chat.stdin.flush()
        assert chat.stdout.read(1)
        chat.terminate()

        assert 143 == chat.wait(10)
    held = ask(environment, "workers", "--nats", url, "--json")
    assert [0] * 3 == [each["num_held"] for each in json.loads(held.stdout)]


@pytest.mark.parametrize("encoding", ["utf-8:strict", "utf-8:surrogateescape"])
def test_bytes_of_no_text_are_an_error_of_one_line(
    own_nats_server: Any, environment: dict[str, str], encoding: str
) -> None:
    done = subprocess.run(
        [*SLIPSTREAM, "chat", "--nats", own_nats_server.url],
        input=b"\xff\xfe\n",
        capture_output=True,
        check=False,
        env={**environment, "PYTHONIOENCODING": encoding},
        timeout=30,
    )

    assert (1, b"slipstream: the input is no utf-8 text\n") == (done.returncode, done.stderr)
