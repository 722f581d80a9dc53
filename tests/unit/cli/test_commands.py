"""The command line: help, options of every setting, and errors of one line."""

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from slipstream.services.cli import roles
from slipstream.services.cli.answer_printer import as_json, summary
from slipstream.services.cli.commands import run_app
from slipstream.services.cli.health_command import find_problem
from slipstream.services.cli.main import run_command
from slipstream.services.cli.plain_options import read_plainly
from slipstream.services.cli.roles import ROLE_COMMANDS
from slipstream.services.cli.settings import PARENT, SETTINGS, build, variable_of
from slipstream.services.cli.trace_settings import (
    forwarding_endpoint,
    kept_at,
    may_keep,
    tracing_to,
)
from slipstream.services.cli.up_command import describe
from slipstream.shared.client.answers import Answer
from slipstream.shared.config import DecodeConfig, KvConfig, SchedulerConfig, ServiceConfig
from slipstream.shared.ids import RequestId
from slipstream.shared.lifecycle import Status
from slipstream.shared.messages.common import Timings, Usage
from slipstream.shared.telemetry.otlp_settings import read_settings

ANSWER = Answer(
    text="Paris",
    token_ids=[3, 4],
    finish_reason="stop",
    usage=Usage(num_prompt_tokens=9, num_output_tokens=2),
    timings=Timings(ttft_ms=12.34, tpot_ms=None),
    request_id=RequestId("r"),
    route="remote",
    trace_id="ab",
    seed=1,
    model="m",
)


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> list[ServiceConfig]:
    """Record what each service would be run with."""
    for name in list(os.environ):
        if name.startswith("SLIPSTREAM_"):
            monkeypatch.delenv(name)
    seen: list[ServiceConfig] = []

    def load(name: str) -> Any:  # Any: a module with `run`
        module = ModuleType(name)

        def run(config: ServiceConfig) -> int:
            seen.append(config)
            return 3

        module.run = run  # type: ignore[attr-defined] # a stand-in
        return module

    monkeypatch.setattr(roles, "import_module", load)
    return seen


def test_every_field_of_every_configuration_has_an_option() -> None:
    for each in ROLE_COMMANDS:
        names = {field.name for field in dataclasses.fields(each.config_class)} - {"fake"}
        assert names <= SETTINGS.keys(), each.role


def test_no_two_settings_share_a_variable() -> None:
    variables = [variable_of(name) for name in SETTINGS]

    assert len(variables) == len(set(variables))


def test_defaults_are_those_of_the_configuration(
    configured: list[ServiceConfig], tmp_path: Path
) -> None:
    status = run_command(["decode", "--arena-dir", str(tmp_path), "--cache-dir", str(tmp_path)])

    assert 3 == status
    assert [DecodeConfig(arena_dir=tmp_path, cache_dir=tmp_path)] == configured


def test_every_setting_can_come_from_the_environment(
    configured: list[ServiceConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {
        "SLIPSTREAM_NATS_URL": "nats://elsewhere:4222",
        "SLIPSTREAM_MODEL": "m",
        "SLIPSTREAM_CACHE_DIR": str(tmp_path),
        "SLIPSTREAM_ARENA_DIR": str(tmp_path),
        "SLIPSTREAM_KV_MEMORY": "512MiB",
        "SLIPSTREAM_STATUS_FILE": str(tmp_path / "s"),
        "SLIPSTREAM_TEST_MODE": "1",
        "SLIPSTREAM_ENGINE": "fake",
        "SLIPSTREAM_FAKE_STEP_MS": "2.5",
        "SLIPSTREAM_LOG_JSON": "1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    run_command(["kv"])

    (config,) = configured
    assert isinstance(config, KvConfig)
    assert ("nats://elsewhere:4222", "m", tmp_path) == (
        config.nats_url,
        config.model,
        config.cache_dir,
    )
    assert (tmp_path, 512 * 2**20, tmp_path / "s") == (
        config.arena_dir,
        config.memory_bytes,
        config.status_file,
    )
    assert (True, "fake", 2.5, True) == (
        config.is_test_mode,
        config.engine,
        config.fake.step_ms,
        config.is_log_json,
    )


def test_an_option_goes_before_its_variable(
    configured: list[ServiceConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_ROUTE", "local")

    run_command(["scheduler", "--route", "remote"])

    (config,) = configured
    assert isinstance(config, SchedulerConfig)
    assert "remote" == config.route


_AS_VARIABLES = {
    "SLIPSTREAM_ARENA_DIR": "/a",
    "SLIPSTREAM_CACHE_DIR": "/c",
    "SLIPSTREAM_THREADS": "",
    "SLIPSTREAM_SEATS": "7",
    "SLIPSTREAM_SHARE_CORES": "Off",
    "SLIPSTREAM_LOG_JSON": "t",
    "SLIPSTREAM_DRAIN_S": "1e1",
    "SLIPSTREAM_PARENT_PID": "",
}


@pytest.mark.parametrize(
    ("role", "arguments"),
    [
        ("decode", []),
        ("decode", ["--nats", "nats://x", "--model=m", "--threads", "3", "--num-threads", "4"]),
        ("decode", ["--share-cores", "--no-log-json", "--format", "int8", "--draft-budget-ms=.5"]),
        ("kv", ["--kv-memory", "1GiB", "--kv-blocks", "9", "--test-mode", "--engine", "fake"]),
        ("prefill", ["--arena-dir", "/b", "--arena-dir", "/d", "--fake-step-ms", "3"]),
        ("scheduler", ["--route", "local", "--max-num-waiting", "5"]),
        ("draft", ["--min-ngram", "3", "--metrics-port", "0", "--metrics-host", "0.0.0.0"]),
    ],
)
def test_a_service_reads_its_options_without_the_library_as_with_it(
    configured: list[ServiceConfig],
    role: str,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in _AS_VARIABLES.items():
        monkeypatch.setenv(name, value)
    config_class = next(each.config_class for each in ROLE_COMMANDS if each.role == role)

    values = read_plainly(config_class, arguments, os.environ)
    run_app([role, *arguments])

    assert values is not None
    assert values.pop(PARENT) is None
    assert [build(config_class, values)] == configured


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--help"], ["-h"], ["--nonsense", "1"], ["word"], ["--seats"], ["--seats", "many"]),
        *(["--share-cores=1"], ["--engine", "steam"], ["--model", "-x"], ["--parent-pid", "x"]),
    ],
)
def test_what_is_not_plain_is_left_to_the_library(arguments: list[str]) -> None:
    assert read_plainly(DecodeConfig, ["--arena-dir", "/a"], {}) is not None
    assert read_plainly(DecodeConfig, ["--arena-dir", "/a", *arguments], {}) is None
    assert read_plainly(DecodeConfig, [], {}) is None


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["decode"], 2, "--arena-dir"),
        (["run", "--nonsense"], 2, "No such option"),
        (["scheduler", "--route", "sideways"], 2, "remote"),
        (["scheduler", "--engine", "fake"], 1, "--test-mode"),
        (["draft", "--metrics-port", "65536"], 1, "--metrics-port is 65536"),
        (["decode", "--arena-dir", "/x", "--threads", "-1"], 1, "--num-threads is -1"),
        (["kv", "--arena-dir", "/x", "--kv-memory", "lots"], 1, "512MiB"),
        (["model", "pull", "no-such-model"], 1, "is no model"),
        (["up", "--engine", "fake"], 1, "--test-mode"),
    ],
)
@pytest.mark.usefixtures("configured")
def test_an_error_is_one_line_and_a_status(
    arguments: list[str],
    status: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(tmp_path))

    assert status == run_command(arguments)
    captured = capsys.readouterr()
    assert "" == captured.out
    assert captured.err.startswith("slipstream: ")
    assert words in captured.err
    assert 1 == captured.err.count("\n")


@pytest.mark.parametrize(
    "command",
    [
        *([], ["up"], ["run"], ["generate"], ["eval"], ["bench"], ["bench", "engine"]),
        *(["roofline"], ["model"], ["kv"], ["chat"], ["batch"], ["top"]),
    ],
)
def test_help_is_quick_and_loads_nothing_heavy(command: list[str]) -> None:
    script = (
        "import sys; from slipstream.services.cli.main import run_command;"
        f"status = run_command({[*command, '--help']!r});"
        "heavy = {'torch', 'nats', 'transformers', 'numpy', 'opentelemetry'} & set(sys.modules);"
        "sys.exit(status or (f'loaded {heavy}' if heavy else 0))"
    )

    shown = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False
    )

    assert 0 == shown.returncode, shown.stderr
    assert "Usage:" in shown.stdout
    assert "xample" in shown.stdout


def write_status(path: Path, state: str, age_s: float = 0.0) -> None:
    status = Status("decode", "decode-a", 1, state, time.monotonic_ns() - int(age_s * 1e9))  # type: ignore[arg-type] # the parameters are states
    path.write_bytes(msgspec.json.encode(status))


@pytest.mark.parametrize(
    ("state", "age_s", "role", "problem"),
    [
        ("ready", 0, "decode", None),
        ("ready", 0, None, None),
        ("ready", 0, "kv", "is of decode, not of kv"),
        ("starting", 0, None, "is starting"),
        ("draining", 0, None, "is draining"),
        ("ready", 60, None, "no sign of life for 60 s"),
    ],
)
def test_health_means_ready_and_alive(
    state: str, age_s: float, role: str | None, problem: str | None, tmp_path: Path
) -> None:
    write_status(tmp_path / "status", state, age_s)

    found = find_problem(tmp_path / "status", role)

    assert (problem is None) == (found is None)
    assert (problem or "") in (found or "")


def test_health_of_nothing_is_bad(tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("{")

    assert "SLIPSTREAM_STATUS_FILE" in (find_problem(None) or "")
    assert "No such file" in (find_problem(tmp_path / "missing") or "")
    assert "no status file" in (find_problem(tmp_path / "junk") or "")


def test_health_prints_a_line_and_exits_by_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_status(tmp_path / "status", "ready")

    assert 0 == run_command(["health", "decode", "--status-file", str(tmp_path / "status")])
    assert 1 == run_command(["health", "kv", "--status-file", str(tmp_path / "status")])
    assert 2 == capsys.readouterr().out.count("\n")


def test_json_is_one_object_with_the_promised_fields() -> None:
    shown = msgspec.json.decode(as_json(ANSWER, ["decode", "kv"]))

    assert [
        *("text", "token_ids", "finish_reason", "route"),
        *("ttft_ms", "tpot_ms", "trace_id", "services"),
    ] == list(shown)
    assert ("Paris", [3, 4], 12.34, None, ["decode", "kv"]) == (
        shown["text"],
        shown["token_ids"],
        shown["ttft_ms"],
        shown["tpot_ms"],
        shown["services"],
    )


def test_the_summary_says_what_happened() -> None:
    shown = summary(ANSWER, ["decode", "kv"])

    for words in ("12.3 ms", "9 prompt, 2 output", "remote", "decode, kv", "ab"):
        assert words in shown


def test_a_ready_stack_says_how_to_use_it() -> None:
    shown = describe("nats://127.0.0.1:4222", {"kv": "http://127.0.0.1:9301/metrics"})

    assert "slipstream generate --nats nats://127.0.0.1:4222" in shown
    assert "nats req" in shown
    assert "http://127.0.0.1:9301/metrics (kv)" in shown


def test_spans_go_to_our_receiver_and_from_there_to_the_users() -> None:
    own = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces:4318/v1/traces",
        "OTEL_SDK_DISABLED": "false",
    }
    found = read_settings(tracing_to("http://127.0.0.1:5/v1/traces", own))

    assert found is not None
    assert "http://127.0.0.1:5/v1/traces" == found.endpoint
    assert found.schedule_delay_ms <= 100
    assert "http://traces:4318/v1/traces" == forwarding_endpoint(own)
    assert forwarding_endpoint({}) is None
    grpc = {**own, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert forwarding_endpoint(grpc) is None


@pytest.mark.parametrize(
    ("own", "is_kept"),
    [
        ({}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_SDK_DISABLED": "true"}, False),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            },
            False,
        ),
    ],
)
def test_traces_are_kept_unless_the_user_wants_none_or_cant_have_them_passed_on(
    own: dict[str, str], *, is_kept: bool
) -> None:
    assert is_kept == may_keep(own)


def test_what_is_kept_is_sampled_as_the_user_wants() -> None:
    endpoint = "http://127.0.0.1:5/v1/traces"
    own = {"OTEL_TRACES_SAMPLER": "always_off", "OTEL_BSP_SCHEDULE_DELAY": "9"}

    assert own.items() <= kept_at(endpoint, own).items()
    assert endpoint == kept_at(endpoint, own)["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]
    assert "parentbased_always_on" == kept_at(endpoint, {})["OTEL_TRACES_SAMPLER"]
