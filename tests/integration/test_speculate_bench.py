"""`slipstream bench speculate` on the fake engine, and on a stack that answers wrongly."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.messages.generate import GenerateRequest
from tests.integration.bench_command import run_bench
from tests.integration.conftest import Start
from tests.unit.cli.speculating_stack import NUM_TOKENS, SpeculatingStack, counting

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]


@pytest.mark.slow
async def test_a_running_stack_is_measured_cell_by_cell(
    start: Start, nats_server: Any, tmp_path: Path
) -> None:
    await start("scheduler", "kv", "decode")
    path = tmp_path / "speculate.json"
    status, printed, said = await run_bench(
        "speculate",
        *("--url", nats_server.url, "--sets", "chat,copy_edit", "--prompts", "3"),
        *("--batch", "1,2", "--output", "40", "--max-pairs", "2"),
        *("--json", str(path), "--plot", str(tmp_path / "speculate.png")),
    )

    assert 0 == status, said
    found = json.loads(path.read_bytes())
    assert [
        (name, batch, temperature)
        for name in ("chat", "copy_edit")
        for temperature in (0.0, 0.7)
        for batch in (1, 2)
    ] == [(row["set"], row["batch"], row["temperature"]) for row in found["rows"]]
    for row, cell in zip(found["rows"], found["cells"], strict=True):
        assert 2 == len(cell["pair_ratios"])
        assert 0 < row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
        # What the fake engine says can't be guessed: hardly any draft is accepted.
        assert 1.0 <= row["tokens_per_step"] < 1.5
    assert any(cell["draft_share"] > 0 for cell in found["cells"])
    assert len(found["rows"]) + 1 == len(printed.splitlines())
    assert (tmp_path / "speculate.png").read_bytes().startswith(b"\x89PNG")


async def test_a_token_that_speculation_changes_fails_the_command(plain_nats_server: Any) -> None:
    """Any: a fixture's class."""

    def changed(request: GenerateRequest) -> list[int]:
        tokens = counting(request)
        return tokens if request.speculation == "off" else [*tokens[:-1], 0]

    bus = await NatsBus.connect(plain_nats_server.url, "stand-in")
    await SpeculatingStack(changed, bus=bus).start()
    status, printed, said = await run_bench(
        "speculate",
        *("--url", plain_nats_server.url, "--sets", "code", "--prompts", "2"),
        *("--batch", "1", "--temperature", "0", "--output", str(NUM_TOKENS)),
    )
    await bus.close()

    assert (1, "") == (status, printed)
    assert "slipstream: code-01, code, ngram, batch 1, temperature 0, speculation ngram" in said
