"""
The programs behind the figures of the KV cache run and stay near what docs/benchmarks.md records.

Bars in milliseconds and shares of a rate have ten times as much room here: neighbours are noisy.
What causes them is tested where it happens.
"""

from pathlib import Path

import pytest
from host_network import why_not

from . import figures
from .figures import ROOM
from .stack import SLIPSTREAM

_WHY_NOT = why_not()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.nats,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("packed_int4"),
]
needs_namespaces = pytest.mark.skipif(_WHY_NOT is not None, reason=str(_WHY_NOT))


def test_a_cached_prompt_answers_soon_and_a_hand_over_takes_no_time(tmp_path: Path) -> None:
    """A ratio needs no room: both sides of it were slowed down alike."""
    options = ["--prompts", "1500", "--planes", "shared_memory", "--rounds", "5"]
    found = figures.run(tmp_path, SLIPSTREAM, "bench", "prefix", *options)
    ((hit,), (hand_over,)) = found["rows"], found["handovers"]

    assert (1500, 1499) == (hit["prompt_tokens"], hit["cached_tokens"])
    assert hit["ratio"] <= 0.1 or hit["hit_ttft_ms"] <= hit["fresh_ttft_ms"] + 8
    assert hand_over["beyond_round_trip_ms"] <= ROOM * 1.0


@needs_namespaces
def test_blocks_travel_nearly_as_fast_as_bytes(tmp_path: Path) -> None:
    medians = figures.medians(tmp_path, "transfer.py", "--rounds", "10")

    assert medians["tcp / plain"] >= 0.6 / ROOM


@needs_namespaces
def test_a_transfer_hides_behind_the_prefill(tmp_path: Path) -> None:
    medians = figures.medians(tmp_path, "two_hosts.py", "--rounds", "5")

    assert medians["both / prefill, slow link"] <= ROOM * 1.25
