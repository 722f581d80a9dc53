"""What `/openapi.json` promises is kept, whatever is sent: thousands of made-up requests."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import http_client, scrape, stack

pytestmark = [pytest.mark.nats, pytest.mark.timeout(240)]

_SCHEMATHESIS = Path(sys.executable).parent / "schemathesis"
_RUN_S = 200.0
# Right data may still be refused: a schema can't say that a model has no such template.
_CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance", "negative_data_rejection"),
    *("unsupported_method", "allow_header_conformance"),
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stack.Stack]:
    arguments = ["--test-mode", "--engine", "fake", "--kv-memory", "1MiB", "--metrics-port", "0"]
    variables = {"SLIPSTREAM_FAKE_STEP_MS": "0"}
    with stack.running(arguments, tmp_path_factory.mktemp("openapi"), variables) as started:
        yield started


@pytest.mark.parametrize("num_examples", [20, pytest.param(300, marks=pytest.mark.slow)])
async def test_no_request_is_answered_otherwise_than_described(
    running: stack.Stack, tmp_path: Path, num_examples: int
) -> None:
    url = http_client.url_of(running)

    done = await asyncio.to_thread(_run, url, tmp_path, num_examples)

    assert 0 == done.returncode, done.stdout[-8000:] + done.stderr[-2000:]
    # It got past the door, too.
    seen = await scrape.scrape(running, ["gateway"])
    for endpoint in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        assert seen.one("gateway", "http_requests_total", endpoint=endpoint, status="200") > 0
        assert seen.one("gateway", "http_requests_total", endpoint=endpoint, status="400") > 0


def _run(url: str, directory: Path, num_examples: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(_SCHEMATHESIS, "run", f"{url}/openapi.json", "--checks", ",".join(_CHECKS)),
            *("--phases", "coverage,fuzzing", "--max-examples", str(num_examples)),
            *("--seed", "7", "--request-timeout", "30", "--continue-on-failure"),
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=_RUN_S,
        check=False,
    )
