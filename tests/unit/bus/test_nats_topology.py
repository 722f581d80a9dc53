"""The streams as they should be, and whether the servers that we configure have room for them."""

import re
from pathlib import Path

import pytest

from slipstream.services.cli import nats_server
from slipstream.shared.bus.durable import DurableLimits
from slipstream.shared.bus.memory_bus import matches
from slipstream.shared.bus.nats_topology import consumer_config, stream_configs
from slipstream.shared.bus.subjects import (
    DEAD,
    REQUEUE,
    REQUEUE_MODEL,
    SUBMIT,
    SUBMIT_MODEL,
    TOPICS,
)

ROOT = Path(__file__).parents[3]
_UNITS = {"MB": 10**6, "GB": 10**9}


def file_store(settings: str) -> int:
    """Return the room for files, counted as carefully as units can be read."""
    found = re.search(r"max_file_store: (\d+)(MB|GB)", settings)
    assert found is not None
    return int(found[1]) * _UNITS[found[2]]


@pytest.mark.parametrize(
    "settings",
    [nats_server._SETTINGS, (ROOT / "deploy" / "nats.conf").read_text(encoding="utf-8")],
    ids=["embedded", "deploy"],
)
def test_our_servers_have_room_for_the_default_limits(settings: str) -> None:
    assert sum(each.max_bytes or 0 for each in stream_configs(DurableLimits())) < file_store(
        settings
    )


@pytest.mark.parametrize(
    "settings",
    [nats_server._SETTINGS, (ROOT / "deploy" / "nats.conf").read_text(encoding="utf-8")],
    ids=["embedded", "deploy"],
)
def test_what_is_acknowledged_has_been_written_through(settings: str) -> None:
    """The default, two minutes, would lose it with the power."""
    lines = [line.strip() for line in settings.partition("jetstream {")[2].splitlines()]

    assert "sync_interval: always" in lines


def test_only_what_is_durable_is_captured() -> None:
    captured = [
        subject for each in stream_configs(DurableLimits()) for subject in each.subjects or []
    ]
    topics = [
        topic
        for topic in TOPICS
        if any(matches(subject, topic.wildcard.replace("*", "x")) for subject in captured)
    ]

    assert [SUBMIT, SUBMIT_MODEL, REQUEUE, REQUEUE_MODEL, DEAD] == topics


def test_windows_of_duplicates_end_with_what_is_kept() -> None:
    """The server refuses a longer one."""
    limits = DurableLimits(result_keep_s=5, dead_keep_s=6)

    assert [120, 5, 6] == [each.duplicate_window for each in stream_configs(limits)]


def test_deliveries_are_without_end_on_the_server() -> None:
    """It would leave what was delivered too often in the stream, unseen: takers count."""
    config = consumer_config(DurableLimits(redelivery_s=7))

    assert (-1, 7) == (config.max_deliver, config.ack_wait)
