"""What the two ends compare and refuse, and how their messages are protected."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from slipstream.shared.bus.memory_bus import matches
from slipstream.shared.bus.subjects import KV_DATA, TOPICS
from slipstream.shared.errors import ProtocolError
from slipstream.shared.kv.transfer import plane as module
from slipstream.shared.kv.transfer.frames import MAX_MESSAGE_BYTES, pack_message, unpack_message
from slipstream.shared.kv.transfer.messages import (
    Ask,
    FetchBlocks,
    Refused,
    ServerSays,
    ServerTakes,
)
from slipstream.shared.kv.transfer.plane import (
    MAX_REQUEST_BLOCKS,
    PlaneIdentity,
    TransferIncompatibleError,
    TransferRefusedError,
    why_refused,
)
from slipstream.shared.kv.transfer.tcp import split_address
from slipstream.shared.kv.transfer.threads import run_to_its_end
from slipstream.shared.kv.transfer.trying import BusyError, error_of
from slipstream.shared.messages.codec import decoder_of

IDENTITY = PlaneIdentity("source", 1, "layout", "model", block_bytes=4)
FETCH = FetchBlocks("t", "lease", [1, 2], [10, 20], 1000)


class Source:
    """Three blocks of one lease."""

    identity = IDENTITY
    blocks = memoryview(bytes(12))
    generations = memoryview(bytearray(12)).cast("I")

    def may_read(
        self, lease_id: str, _block_ids: Sequence[int], _generations: Sequence[int]
    ) -> str | None:
        return None if lease_id == "lease" else "unknown_lease"


@pytest.fixture
def source() -> Source:
    source = Source()
    source.generations[1], source.generations[2] = 10, 20
    return source


def test_alike_hosts_match() -> None:
    assert IDENTITY.mismatch(replace(IDENTITY, host_id="other", epoch=2).hello()) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("layout", "layout-2"), ("model_fingerprint", "model-2"), ("block_bytes", 8)],
)
def test_mismatch_names_both_sides(field: str, value: object) -> None:
    other = replace(IDENTITY, host_id="other", **{field: value})
    mismatch = IDENTITY.mismatch(other.welcome()) or ""

    assert f"source is ({getattr(IDENTITY, field)})" in mismatch
    assert f"other ({value})" in mismatch


def test_other_protocol_version_is_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    hello = IDENTITY.hello()
    monkeypatch.setattr(module, "PROTOCOL_VERSION", 2)

    assert "protocol" in (IDENTITY.mismatch(hello) or "")


@pytest.mark.parametrize(
    ("fetch", "reason"),
    [
        (FETCH, None),
        (FetchBlocks("t", "other", [1, 2], [10, 20]), "unknown_lease"),
        (FetchBlocks("t", "lease", [1, 2], [10, 21]), "stale_block"),
        (FetchBlocks("t", "lease", [1, 2], [10, -1]), "stale_block"),
        (FetchBlocks("t", "lease", [1, 2], [10]), "invalid"),
        (FetchBlocks("t", "lease", [], []), "invalid"),
        (FetchBlocks("t", "lease", [1, 3], [10, 0]), "invalid"),
        (FetchBlocks("t", "lease", [1, -1], [10, 20]), "invalid"),
        (
            FetchBlocks("t", "lease", [1] * (MAX_REQUEST_BLOCKS + 1), [10]),
            "too_large",
        ),
    ],
)
def test_questions_are_checked(source: Source, fetch: FetchBlocks, reason: str | None) -> None:
    refusal = why_refused(source, fetch)

    assert reason == (refusal and refusal[0])


def test_too_many_bytes_are_refused(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REQUEST_BYTES", 7)

    assert "too_large" == (why_refused(source, FETCH) or "")[0]
    assert why_refused(source, FetchBlocks("t", "lease", [1], [10])) is None


def test_message_travels_as_it_was() -> None:
    ask = Ask(IDENTITY.hello(), FETCH)

    assert ask == unpack_message(pack_message(ask), decoder_of(Ask))
    assert FETCH == unpack_message(pack_message(FETCH), decoder_of(ServerTakes))


@pytest.mark.parametrize("position", range(len(pack_message(FETCH))))
def test_damaged_message_is_no_message(position: int) -> None:
    frame = bytearray(pack_message(FETCH))
    frame[position] ^= 0x10
    # The number and the size are not read where the frame's end is known.
    if 4 <= position < 12:
        return

    with pytest.raises(ProtocolError):
        unpack_message(bytes(frame), decoder_of(ServerTakes))


def test_largest_question_fits_a_message() -> None:
    many = [2**32 - 1] * MAX_REQUEST_BLOCKS

    assert len(pack_message(FetchBlocks("t" * 64, "l" * 64, many, many))) < MAX_MESSAGE_BYTES


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("busy", BusyError),
        ("incompatible", TransferIncompatibleError),
        ("unknown_lease", TransferRefusedError),
    ],
)
def test_refusals_become_errors(reason: str, kind: type[Exception]) -> None:
    refused = unpack_message(pack_message(Refused(reason, "why")), decoder_of(ServerSays))

    assert type(error_of(refused)) is kind


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:80", ("::1", 80)),
        ("host.lan:1", ("host.lan", 1)),
    ],
)
def test_address_is_split(address: str, parts: tuple[str, int]) -> None:
    assert parts == split_address(address)


@pytest.mark.parametrize("address", ["", "host", "host:", ":80", "host:x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_address(address)


def test_subject_of_the_plane_is_its_own() -> None:
    subject = KV_DATA.subject(host_id="h")

    assert not [topic for topic in TOPICS if matches(topic.wildcard, subject)]


async def test_cancellation_waits_for_the_thread() -> None:
    """However often it is cancelled: until then the thread may write."""
    started, stopped, written = threading.Event(), threading.Event(), []

    def work() -> None:
        started.set()
        stopped.wait(5)
        written.append("late")

    with ThreadPoolExecutor(1) as threads:
        task = asyncio.create_task(run_to_its_end(threads, work, lambda: None))
        await asyncio.to_thread(started.wait)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)

        assert not task.done()

        stopped.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert ["late"] == written


async def test_work_that_waits_for_its_turn_is_cancelled_at_once() -> None:
    release, begun = threading.Event(), []
    with ThreadPoolExecutor(1) as threads:
        threads.submit(release.wait, 5)
        task = asyncio.create_task(run_to_its_end(threads, lambda: begun.append(1), lambda: None))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        release.set()

    assert [] == begun
