"""`slipstream batch` on a running stack, killed in between."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from .command_line import SLIPSTREAM, ask, url_of

pytestmark = [pytest.mark.nats, pytest.mark.timeout(90)]

_NUM_LINES = 60


def _line(number: int, **body: Any) -> dict[str, Any]:
    is_chat = number % 2 == 0
    source = (
        {"messages": [{"role": "user", "content": f"Question {number}"}]}
        if is_chat
        else {"prompt": f"Question {number}"}
    )
    return {
        "custom_id": f"line-{number}",
        "method": "POST",
        "url": "/v1/chat/completions" if is_chat else "/v1/completions",
        "body": {**source, "max_tokens": 30, "seed": number, **body},
    }


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def _rows(path: Path) -> dict[str | None, Any]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == len({row["id"] for row in rows}), "a line has two rows"
    return {row["custom_id"]: row for row in rows}


def test_a_killed_batch_goes_on_and_answers_every_line_once(
    up: "subprocess.Popen[str]", environment: dict[str, str], tmp_path: Path
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    _write(source, [_line(number) for number in range(_NUM_LINES)])
    command = ["batch", str(source), str(target), "--nats", url_of(up), "--concurrency", "4"]
    with subprocess.Popen(
        [*SLIPSTREAM, *command], stderr=subprocess.PIPE, env=environment
    ) as first:
        deadline_s = time.monotonic() + 30
        while not target.exists() or target.read_bytes().count(b"\n") < 5:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        first.kill()
    num_before = target.read_bytes().count(b"\n")
    with target.open("a", encoding="utf-8") as file:
        file.write('{"id": "batch_req_')
    second = ask(environment, *command, "--json", timeout_s=60)
    third = ask(environment, *command, "--json")

    assert 5 <= num_before < _NUM_LINES
    assert 0 == second.returncode, second.stderr
    assert {
        "num_lines": _NUM_LINES,
        "num_answered": _NUM_LINES,
        "num_failed": 0,
        "num_unanswered": 0,
        "num_found": num_before,
    } == json.loads(second.stdout)
    assert (0, _NUM_LINES) == (third.returncode, json.loads(third.stdout)["num_found"])
    rows = _rows(target)
    assert {f"line-{number}" for number in range(_NUM_LINES)} == rows.keys()
    chat, text = (rows[name]["response"]["body"] for name in ("line-0", "line-1"))
    assert ("chat.completion", "text_completion") == (chat["object"], text["object"])
    assert 30 == text["usage"]["completion_tokens"]
    alone = ask(
        environment,
        "generate",
        "--raw",
        "Question 1",
        "--seed",
        "1",
        "--max-tokens",
        "30",
        *("--json", "--no-stream", "--nats", command[4]),
    )
    assert json.loads(alone.stdout)["text"] == text["choices"][0]["text"]


def test_bad_lines_become_rows_that_say_why(
    up: "subprocess.Popen[str]", environment: dict[str, str], tmp_path: Path
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    good, hot, odd = _line(1), _line(2, temperature=9), _line(3, seed="x")
    source.write_text("\n".join([json.dumps(good), json.dumps(hot), json.dumps(odd), "{"]))
    done = ask(environment, "batch", str(source), str(target), "--nats", url_of(up), timeout_s=60)
    rows = _rows(target)

    assert (4, "") == (done.returncode, done.stdout)
    assert "1 of 4 answered, 3 failed" in done.stderr
    assert 200 == rows["line-1"]["response"]["status_code"]
    refused = rows["line-2"]["response"]
    assert (400, "temperature") == (refused["status_code"], refused["body"]["error"]["param"])
    assert ("body.seed", 3) == (rows["line-3"]["error"]["param"], rows["line-3"]["error"]["line"])
    assert rows[None]["error"]["message"].startswith("line 4: is no JSON")


def test_what_can_not_begin_says_why_in_one_line(
    own_nats_server: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    _write(source, [_line(1), _line(1)])
    twice = ask(environment, "batch", str(source), str(target))
    _write(source, [_line(1)])
    same = ask(environment, "batch", str(source), str(source))
    alone = ask(environment, "batch", str(source), str(target), "--nats", own_nats_server.url)

    for done, words in (
        (twice, "custom_id 'line-1' is that of line 1 too"),
        (same, "is the input"),
        (alone, "once a scheduler has run there"),
    ):
        assert (1, "") == (done.returncode, done.stdout)
        assert words in done.stderr
        assert 1 == done.stderr.count("\n")
