"""Clients of other people, as they are installed: they ask the real model through the gateway."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end import http_client, stack

pytestmark = [
    pytest.mark.clients,
    pytest.mark.nats,
    pytest.mark.model,
    pytest.mark.timeout(400),
]

_HERE = Path(__file__).parent
_BIN = _HERE.parents[1] / ".venv-clients" / "bin"
_MODEL = "smollm2-135m"
_RUN_S = 300.0
_NUM_REQUESTS, _NUM_TOKENS, _NUM_AT_ONCE = 24, 32, 4
# Nothing here may want the internet, or tell it anything.
_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "AIPERF_ANALYTICS": "0",
    "DO_NOT_TRACK": "1",
}

Json = dict[str, Any]  # Any: JSON


@pytest.fixture(scope="module")
def url(packed_int8: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    arguments = ["--format", "int8", "--kv-memory", "256MiB"]
    with stack.running(arguments, tmp_path_factory.mktemp("clients")) as started:
        yield http_client.url_of(started)


@pytest.mark.parametrize("client", ["litellm", "langchain"])
def test_libraries_chat_stream_and_see_what_is_wrong(url: str, client: str, tmp_path: Path) -> None:
    said = _run(tmp_path, "python", _HERE / f"{client}_calls.py", url, _MODEL)

    found: Json = json.loads(said.splitlines()[-1])
    assert found["text"]
    assert found["text"] == "".join(found["pieces"])
    assert len([piece for piece in found["pieces"] if piece]) > 1
    assert "length" == found["finish_reason"]
    usage, streamed = found["usage"], found["stream_usage"]
    assert 8 in usage.values()
    assert usage["total_tokens"] == streamed["total_tokens"]
    unknown, out_of_range, too_many = found["errors"]
    assert "NotFound" in unknown["kind"]
    assert "gpt-9" in unknown["message"]
    for error, field in ((out_of_range, "top_p"), (too_many, "max_tokens")):
        assert "Request" in error["kind"], error
        assert field in error["message"]
    if "structured" in found:
        assert {"name", "age"} == set(found["structured"])


def test_aiperf_measures_without_an_error(
    url: str, model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(
        tmp_path,
        *("aiperf", "profile", "--model", _MODEL, "--url", url, "--endpoint-type", "chat"),
        *("--streaming", "--tokenizer", model_dir, "--use-server-token-count"),
        *("--concurrency", _NUM_AT_ONCE, "--request-count", _NUM_REQUESTS),
        *("--isl", 64, "--osl", _NUM_TOKENS, "--extra-inputs", "ignore_eos:true"),
        *("--artifact-dir", tmp_path / "aiperf", "--ui", "none"),
    )

    found: Json = json.loads((tmp_path / "aiperf" / "profile_export_aiperf.json").read_bytes())
    assert [] == found["error_summary"]
    assert not found["was_cancelled"]
    assert _NUM_REQUESTS == found["request_count"]["avg"]
    assert _NUM_REQUESTS * _NUM_TOKENS == found["total_usage_completion_tokens"]["avg"]
    for name in ("time_to_first_token", "inter_token_latency"):
        assert _NUM_REQUESTS == found[name]["count"]
        assert found[name]["min"] > 0
        _show(capsys, f"aiperf: {name} (ms)", found[name])


def test_genai_bench_measures_without_an_error(
    url: str, model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(
        tmp_path,
        *("genai-bench", "benchmark", "--api-backend", "openai", "--api-base", url),
        *("--api-key", "any", "--task", "text-to-text", "--api-model-name", _MODEL),
        *("--model-tokenizer", model_dir, "--num-concurrency", _NUM_AT_ONCE),
        *("--traffic-scenario", f"D(64,{_NUM_TOKENS})", "--max-time-per-run", 2),
        *("--max-requests-per-run", _NUM_REQUESTS, "--experiment-base-dir", tmp_path),
        *("--experiment-folder-name", "genai"),
        *("--additional-request-params", '{"ignore_eos": true}'),
    )

    (path,) = (tmp_path / "genai").glob("D64_*.json")
    found: Json = json.loads(path.read_bytes())["aggregated_metrics"]
    assert found["num_requests"] == found["num_completed_requests"] >= _NUM_REQUESTS
    assert 0 == found["num_error_requests"]
    assert found["stats"]["ttft"]["min"] > 0
    assert found["stats"]["tpot"]["min"] > 0
    assert _NUM_TOKENS == found["stats"]["num_output_tokens"]["min"]
    for name in ("ttft", "tpot"):
        _show(capsys, f"genai-bench: {name} (s)", found["stats"][name])


def _show(capsys: pytest.CaptureFixture[str], name: str, values: Json) -> None:
    """Print what a client measured, past what is captured: people run this to see it."""
    wanted = ("mean", "avg", "min", "p50", "p90", "p99", "max")
    shown = ", ".join(f"{each} {values[each]:.3f}" for each in wanted if values.get(each))
    with capsys.disabled():
        print(f"\n{name}: {shown}")  # noqa: T201 - figures for docs/benchmarks.md


def _run(directory: Path, program: str, *arguments: object) -> str:
    """Run a program of the clients' own environment to its end; return what it printed."""
    done = subprocess.run(
        [_BIN / program, *map(str, arguments)],
        cwd=directory,
        env={**os.environ, **_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_RUN_S,
        check=False,
    )
    assert 0 == done.returncode, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout
