"""What holds for every command: help with examples that work, errors of one line, completion."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from slipstream.services.cli.commands import app
from slipstream.services.cli.exit_codes import EPILOG
from slipstream.services.cli.main import run_command

from .test_commands import write_status

# Any: typer's own copy of click has no types that it shows.
_ROOT: Any = typer.main.get_command(app)
# Groups of commands, and services: what they say is in their logs.
_HAS_NOTHING_TO_PRINT = {
    *("", "bench", "dead", "dead drop", "keys", "model", "up", "drain", "submit"),
    *("scheduler", "kv", "prefill", "decode", "draft", "gateway"),
    *("model pull", "model pack", "model remove", "draft train"),
}


def _walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from _walk(each, (*path, name))


COMMANDS = dict(_walk(_ROOT))
every_command = pytest.mark.parametrize("path", COMMANDS, ids=lambda path: "-".join(path) or "-")


def _options(command: Any) -> set[str]:
    names = {"--help", "-h"}
    for parameter in command.params:
        names |= {*parameter.opts, *parameter.secondary_opts}
    return names


def _examples(command: Any) -> list[str]:
    """Return the commands that a help text shows."""
    text = re.sub(r"(?m)^For example: ", "  ", command.help or "")
    lines = (line.strip() for line in text.splitlines() if line.startswith("  "))
    return [line for line in lines if "slipstream " in line]


@every_command
def test_help_begins_with_an_example(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == run_command([*path, "--help"])
    shown = capsys.readouterr().out
    assert "For example" in shown
    assert "─ Options ─" in shown
    assert shown.index("For example") < shown.index("─ Options ─")


@every_command
def test_examples_name_commands_and_options_that_there_are(path: tuple[str, ...]) -> None:
    examples = _examples(COMMANDS[path])

    assert examples
    for example in examples:
        for call in re.findall(r"slipstream ([^|)]+)", example):
            # Behind `--` stands another command.
            words = shlex.split(re.sub(r"\s{4,}.*|, slipstream.*|\$\(.*| -- .*", "", call))
            found = next(
                tuple(words[:length])
                for length in (2, 1)
                if tuple(words[:length]) in COMMANDS and words[:length]
            )
            unknown = {word for word in words if word.startswith("--")} - _options(COMMANDS[found])
            assert set() == unknown, example


@every_command
def test_an_unknown_option_is_an_error_of_one_line(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == run_command([*path, "--no-such-option"])
    captured = capsys.readouterr()
    assert "" == captured.out
    assert captured.err.startswith("slipstream: ")
    assert "--no-such-option" in captured.err
    assert 1 == captured.err.count("\n")


def test_what_scripts_may_read_comes_as_json() -> None:
    without = {" ".join(path) for path, each in COMMANDS.items() if "--json" not in _options(each)}

    assert without <= _HAS_NOTHING_TO_PRINT, without - _HAS_NOTHING_TO_PRINT


def test_help_ends_with_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    run_command(["--help"])
    shown = " ".join(capsys.readouterr().out.split())

    assert shown.endswith(EPILOG)
    for code in ("0 done", "1 failed", "2 not understood", "3 no answer yet", "130 interrupted"):
        assert code in EPILOG


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"_SLIPSTREAM_COMPLETE": "complete_bash", "COMP_WORDS": "slipstream ba"}, "batch"),
        ({"_SLIPSTREAM_COMPLETE": "complete_bash", "COMP_WORDS": "slipstream to"}, "top"),
        ({"_SLIPSTREAM_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "slipstream ch"}, "chat"),
        (
            {
                "_SLIPSTREAM_COMPLETE": "complete_fish",
                "_TYPER_COMPLETE_ARGS": "slipstream model re",
                "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            },
            "remove",
        ),
    ],
)
def test_shells_complete_commands(variables: dict[str, str], expected: str) -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "slipstream"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COMP_CWORD": "1", **variables},
    )

    assert 0 == done.returncode, done.stderr
    assert expected in done.stdout


def test_models_are_listed_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert 0 == run_command(["model", "list", "--json", "--cache-dir", str(tmp_path)])
    nothing = json.loads(capsys.readouterr().out)
    run_command(["model", "pull", "fake", "--cache-dir", str(tmp_path)])
    folder = capsys.readouterr().out.strip()
    run_command(["model", "list", "--json", "--cache-dir", str(tmp_path)])
    (model,) = json.loads(capsys.readouterr().out)

    assert [] == nothing
    assert ("fake", folder, None) == (model["name"], model["directory"], model["damage"])
    assert 0 < model["num_bytes"]


def test_health_is_told_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_status(tmp_path / "status", "draining")
    options = ["--status-file", str(tmp_path / "status"), "--json"]
    status = run_command(["health", "decode", *options])

    assert 1 == status
    assert {
        "is_ready": False,
        "role": "decode",
        "problem": "not ready: decode-a is draining",
    } == json.loads(capsys.readouterr().out)
