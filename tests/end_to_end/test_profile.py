"""`slipstream profile` on the real model: where the time goes adds up to the time."""

import json
import subprocess
from pathlib import Path

import pytest

from .stack import SLIPSTREAM

pytestmark = [pytest.mark.model, pytest.mark.nats, pytest.mark.timeout(240), pytest.mark.slow]

_COMMAND_S = 220
_MAX_UNNAMED = 0.05


def test_what_has_a_name_is_all_but_a_twentieth_of_the_time(
    packed_int8: None, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    done = subprocess.run(
        [
            *(SLIPSTREAM, "profile", "--load", "streams=4,prompt=200,output=60", "--seconds", "8"),
            *("--format", "int8", "--route", "local", "--prefill", "0", "--draft", "0"),
            *("--json", path),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=_COMMAND_S,
    )

    assert 0 == done.returncode, done.stderr
    found = json.loads(path.read_bytes())
    (decode,) = (each for each in found["services"] if each["role"] == "decode")
    assert pytest.approx(1.0, abs=_MAX_UNNAMED) == decode["accounted"]
    assert decode["shares"]["other"] < _MAX_UNNAMED
    assert found["token_shares"]["other"] < _MAX_UNNAMED
    # A model of this size is read, whatever else the machine does.
    shares = decode["shares"]
    assert shares["weights"] > shares["kv"] > 0
    assert shares["weights"] > 0.25
    assert min(shares["arithmetic"], shares["sampling"], shares["messages"]) > 0
    # Four requests at any moment: each of them is somewhere.
    assert 3.0 < found["request_seconds"] / found["seconds"] < 4.2
