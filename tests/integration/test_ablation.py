"""`slipstream bench ablation` on the fake engine: real stacks, one of them without each layer."""

import json
from pathlib import Path

import pytest

from tests.integration.bench_command import run_bench

pytestmark = [pytest.mark.nats, pytest.mark.timeout(150)]

_FAKE = ("--engine", "fake", "--model", "fake", "--kv-memory", "16MiB")


@pytest.mark.slow
async def test_each_layer_of_the_services_is_left_out_and_no_token_changes(tmp_path: Path) -> None:
    path = tmp_path / "ablation.json"
    status, printed, said = await run_bench(
        *("ablation", "--quick", *_FAKE, "--context", "512", "--system", "64"),
        *("--layers", "paging,prefix cache,speculation", "--json", str(path)),
        *("--plot", str(tmp_path / "ablation.png")),
        variables={"SLIPSTREAM_CACHE_DIR": str(tmp_path / "cache")},
    )

    assert 0 == status, said
    found = json.loads(path.read_bytes())
    rows = {row["layer"]: row for row in found["rows"]}
    assert ["everything on", "paging", "prefix cache", "speculation"] == list(rows)
    assert (6, 3, 64) == (
        found["settings"]["requests"],
        found["settings"]["streams"],
        found["settings"]["system_tokens"],
    )
    for row in rows.values():
        assert row["tokens_equal"]
        assert row["throughput_tok_s"] > 0
        assert 0 < row["ttft_ms"]["p50"] <= row["ttft_ms"]["p95"] <= row["ttft_ms"]["p99"]
        assert None is row["bytes_per_token"]  # a sleep moves nothing
    assert {"", "needs more rounds"} == {row["verdict"] for row in rows.values()}
    assert "every prompt computed whole" in printed
    assert (tmp_path / "ablation.png").read_bytes().startswith(b"\x89PNG")


async def test_a_layer_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    status, _, said = await run_bench(
        *("ablation", *_FAKE, "--layers", "kv"),
        variables={"SLIPSTREAM_CACHE_DIR": str(tmp_path / "cache")},
    )

    assert 1 == status
    assert "--layers 'kv' is none of paging" in said
