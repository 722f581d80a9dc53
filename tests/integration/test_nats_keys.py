"""A stack whose every process has its own key, asked by whoever has one and whoever has none."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from structlog.testing import capture_logs

from slipstream.services.cli.nats_certificates import make_certificates
from slipstream.services.cli.nats_keys import SERVER, KeySet, make_key_set
from slipstream.services.cli.nats_server import own_keys
from slipstream.shared.bus.nats_access import NatsAccess
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.errors import ConfigurationError, NotPermittedError, SlipstreamError
from tests.conftest import NatsServer

from .command_line import FAKE, SLIPSTREAM, ask, url_of
from .test_nats_permissions import nats_with_keys

# A stack starts in a second or two where nothing else runs.
pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

_BODY = json.dumps({"prompt": "Hello", "max_tokens": 4}).encode()


@pytest.fixture
def keys(tmp_path: Path) -> KeySet:
    made = KeySet(tmp_path / "keys")
    make_key_set(made)
    return made


@pytest.fixture
def server(keys: KeySet) -> Iterator[NatsServer]:
    with nats_with_keys(keys, has_jetstream=True) as made:
        yield made


@pytest.fixture
def tls_keys(tmp_path: Path) -> KeySet:
    made = KeySet(tmp_path / "keys")
    make_key_set(made, tls_directory=str(made.directory / SERVER))
    make_certificates(made, ["localhost", "127.0.0.1"])
    return made


@pytest.fixture
def tls_server(tls_keys: KeySet) -> Iterator[NatsServer]:
    with nats_with_keys(tls_keys, has_jetstream=True) as made:
        yield made


async def _answer(client: Client, subject: str, payload: bytes = _BODY) -> Any:  # Any: JSON
    return json.loads((await client.request(subject, payload, timeout=15)).data)


async def test_a_plain_guest_can_ask_submit_and_fetch_and_no_more(
    up: "subprocess.Popen[str]", environment: dict[str, str]
) -> None:
    """As the README does with `nats req`: no key, no prefix of its own, answers in `_INBOX.`."""
    url = await asyncio.to_thread(url_of, up)
    keys = own_keys(url)
    assert keys is not None, "the stack has made keys"
    guest = await nats.connect(url)
    try:
        answer = await _answer(guest, "slipstream.v1.generate")
        assert "completion" == answer["type"], answer
        cancelled = await _answer(
            guest,
            f"slipstream.v1.cancel.{answer['request_id']}",
            json.dumps({"type": "cancel", "request_id": answer["request_id"]}).encode(),
        )
        assert "cancelled" == cancelled["type"], cancelled
        stored = await _answer(guest, "slipstream.v1.submit")
        bucket = await guest.jetstream().key_value("slipstream_results")
        result = await _fetched(bucket, f"seq-{stored['seq']}")
        assert "completion" == json.loads(result)["type"]
    finally:
        await guest.close()

    # Whose stack it is may look at it without naming the key; another key than the operator's not.
    listed = await asyncio.to_thread(ask, environment, "workers", "--json", "--nats", url)
    assert {"decode", "draft", "prefill"} == {each["role"] for each in json.loads(listed.stdout)}
    client = {**environment, "SLIPSTREAM_NATS_NKEY": str(keys.seed_file("client"))}
    refused = await asyncio.to_thread(ask, client, "workers", "--nats", url)
    assert 1 == refused.returncode
    assert "NATS does not let client use" in refused.stderr
    assert "needs another key, in SLIPSTREAM_NATS_NKEY=FILE" in refused.stderr


async def _fetched(bucket: Any, key: str) -> bytes:  # Any: nats-py's own type is not exported
    deadline_s = time.monotonic() + 20
    while True:
        try:
            return bytes((await bucket.get(key)).value)
        except nats.js.errors.KeyNotFoundError:
            assert time.monotonic() < deadline_s, f"{key} has no result"
            await asyncio.sleep(0.05)


async def test_a_service_with_anothers_key_says_what_it_is_denied(
    server: NatsServer, keys: KeySet
) -> None:
    with capture_logs() as logs:
        bus = await NatsBus.connect(server.url, "test", keys.access("draft"))
        await bus.publish("slipstream.v1.generate", b"")
        await bus.flush()
        for _ in range(2):
            with pytest.raises(NotPermittedError):
                await bus.publish("slipstream.v1.generate", b"")
        await bus.close()

    denied = [each for each in logs if "nats_permission_denied" == each["event"]]
    assert ["slipstream.v1.generate"] == [each["subject"] for each in denied]
    assert ["publish"] == [each["verb"] for each in denied]


async def test_only_the_scheduler_makes_the_bucket_of_workers(
    server: NatsServer, keys: KeySet
) -> None:
    """Whoever may make a stream decides what it captures, so workers wait for the scheduler's."""
    worker = await NatsBus.connect(server.url, "worker", keys.access("decode"))
    scheduler = await NatsBus.connect(server.url, "scheduler", keys.access("scheduler"))
    with pytest.raises(SlipstreamError, match="BucketNotFound"):
        await worker.registry().put("one", b"1")
    await scheduler.registry().ensure()
    await worker.registry().put("one", b"1")
    await worker.registry().put("two", b"2")
    await worker.registry().delete("two")

    assert {"one": b"1"} == await scheduler.registry().entries()
    assert {"one": b"1"} == await worker.registry().entries()
    await worker.close()
    await scheduler.close()


async def test_another_authority_is_refused_at_once(
    tls_server: NatsServer, tls_keys: KeySet, tmp_path: Path
) -> None:
    others = KeySet(tmp_path / "others")
    make_key_set(others, tls_directory=str(others.directory / SERVER))
    make_certificates(others, ["127.0.0.1"])
    url = _tls(tls_server)
    started_s = time.monotonic()
    wrong = NatsAccess(nkey=tls_keys.seed_file("kv"), ca=others.ca_file("kv"))
    with pytest.raises(ConfigurationError, match=r"certificate that is not trusted .*--nats-ca"):
        await NatsBus.connect(url, "test", wrong, connect_timeout_s=60)
    with pytest.raises(ConfigurationError, match=r"certificate that is not trusted .*--nats-ca"):
        await NatsBus.connect(url, "test", connect_timeout_s=60)
    assert time.monotonic() - started_s < 30, "no further try mends it"

    bus = await NatsBus.connect(url, "test", tls_keys.access("kv"))
    await bus.flush()
    await bus.close()


async def test_a_name_that_is_not_in_the_certificate_is_refused(
    tmp_path: Path,
) -> None:
    keys = KeySet(tmp_path / "keys")
    make_key_set(keys, tls_directory=str(keys.directory / SERVER))
    make_certificates(keys, ["nats.example.org"])
    with (
        nats_with_keys(keys, has_jetstream=False) as server,
        pytest.raises(ConfigurationError, match="certificate that is not trusted"),
    ):
        await NatsBus.connect(_tls(server), "test", keys.access("kv"))


async def test_a_server_without_tls_is_not_spoken_to_in_plain_text(
    server: NatsServer, tls_keys: KeySet
) -> None:
    """Whoever stands between could say that there is none."""
    with pytest.raises(ConfigurationError, match="offers no TLS"):
        await NatsBus.connect(_tls(server), "test")
    with pytest.raises(ConfigurationError, match="offers no TLS"):
        await NatsBus.connect(server.url, "test", NatsAccess(ca=tls_keys.ca_file("kv")))


async def test_tls_is_checked_when_reconnecting_too(
    tls_server: NatsServer, tls_keys: KeySet
) -> None:
    bus = await NatsBus.connect(_tls(tls_server), "test", tls_keys.access("kv"))
    tls_server.stop()
    settings = tls_server.settings_file.read_text()
    tls_server.settings_file.write_text("max_payload: 8MB\n")  # no TLS, and no keys
    with capture_logs() as logs:
        tls_server.start()
        deadline_s = time.monotonic() + 20
        while not any("offers no TLS" in str(each.get("error")) for each in logs):
            assert time.monotonic() < deadline_s, logs
            await asyncio.sleep(0.05)
    assert not bus.client.is_connected
    tls_server.stop()
    tls_server.settings_file.write_text(settings)
    tls_server.start()
    deadline_s = time.monotonic() + 20
    while not bus.client.is_connected:
        assert time.monotonic() < deadline_s, "it does not come back"
        await asyncio.sleep(0.05)
    await bus.close()


def test_a_stack_answers_over_tls_with_keys_and_without_a_guest(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    keys = KeySet(tmp_path / "keys")
    make_key_set(keys, has_guest=False, tls_directory=str(keys.directory / SERVER))
    make_certificates(keys, ["127.0.0.1"])
    with nats_with_keys(keys, has_jetstream=True) as server:
        url = _tls(server)
        command = [*SLIPSTREAM, "up", "--nats", url, "--nats-keys", str(keys.directory), *FAKE]
        with (tmp_path / "up.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--http-port", "0"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        with process:
            try:
                url_of(process)
                access = keys.access("client")
                known = {"SLIPSTREAM_NATS_NKEY": str(access.nkey), "SLIPSTREAM_NATS_URL": url}
                known["SLIPSTREAM_NATS_CA"] = str(access.ca)
                answer = ask({**environment, **known}, "generate", "Hello", "--max-tokens", "4")
                del known["SLIPSTREAM_NATS_NKEY"]
                refused = ask({**environment, **known}, "generate", "Hello")
            finally:
                process.terminate()
                process.wait(10)

    assert 0 == answer.returncode, answer.stderr
    assert answer.stdout
    assert 1 == refused.returncode
    assert "refuses our key, or asks for one" in refused.stderr
    assert "nats_permission_denied" not in (tmp_path / "up.log").read_text(errors="replace")


def _tls(server: NatsServer) -> str:
    return f"tls://127.0.0.1:{server.url.rpartition(':')[2]}"


def test_a_key_that_others_may_read_stops_a_service_before_it_connects(
    keys: KeySet, environment: dict[str, str]
) -> None:
    keys.seed_file("scheduler").chmod(0o644)
    command = [sys.executable, "-P", "-m", "slipstream.services.cli.main", "scheduler"]
    ended = subprocess.run(
        [*command, "--nats-nkey", str(keys.seed_file("scheduler"))],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=25,
    )

    assert 1 == ended.returncode
    assert "chmod 600" in ended.stdout + ended.stderr
