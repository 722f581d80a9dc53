"""`slipstream bench ablation` on the real model: every layer left out, and the tokens that stay."""

import json
import subprocess
from pathlib import Path

import pytest

from .stack import SLIPSTREAM

pytestmark = [pytest.mark.model, pytest.mark.nats, pytest.mark.timeout(600), pytest.mark.slow]

_COMMAND_S = 580


def test_every_layer_can_be_left_out_and_only_formats_change_tokens(tmp_path: Path) -> None:
    """Nothing here is about speed, but for bytes, which don't depend on the machine."""
    path = tmp_path / "ablation.json"
    done = subprocess.run(
        [SLIPSTREAM, "bench", "ablation", "--quick", "--json", path],
        check=False,
        capture_output=True,
        text=True,
        timeout=_COMMAND_S,
    )

    assert 0 == done.returncode, done.stderr
    rows = {row["layer"]: row for row in json.loads(path.read_bytes())["rows"]}
    assert 11 == len(rows)
    for name in rows.keys() - {"weights", "kv", "everything off"}:
        assert rows[name]["tokens_equal"], name
    # Twice the bytes of all weights a step; how many steps it takes depends on the machine, too.
    assert rows["weights"]["bytes_per_token"] > 1.3 * rows["everything on"]["bytes_per_token"]
    assert rows["everything off"]["bytes_per_token"] > rows["weights"]["bytes_per_token"]
