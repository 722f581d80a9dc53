"""TLS of HTTP and of KV that travels: who is let in, who is not, and why it is said."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream.shared.config import GatewayConfig, KvConfig
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.kv.transfer.plane import TransferBrokenError, TransferIncompatibleError
from slipstream.shared.kv.transfer.tcp import TcpPlane, TcpServer
from slipstream.shared.tls import HttpTlsFiles, http_tls, transfer_tls

from .authority import Authority
from .service_stack import OVER_HTTP
from .transfer_pair import Link, Places, StandInSource, identity

BLOCK_BYTES = 300_001
NUM_BLOCKS = 6
ORDER = list(range(NUM_BLOCKS))


@pytest.fixture
def source() -> StandInSource:
    return StandInSource(NUM_BLOCKS, BLOCK_BYTES)


@pytest.fixture
def places() -> Places:
    return Places(NUM_BLOCKS, BLOCK_BYTES)


@pytest.fixture
async def server(source: StandInSource, authority: Authority) -> AsyncIterator[TcpServer]:
    server = await TcpServer.start(source, tls=authority.peer("server").server)
    yield server
    await server.stop()


async def test_blocks_travel_unreadable(
    source: StandInSource, server: TcpServer, places: Places, authority: Authority
) -> None:
    """They arrive whole, and a link between the two sees none of their bytes."""
    seen = bytearray()

    class Tap(Link):
        async def _pump(self, reader: Any, writer: Any, **_options: Any) -> None:
            with contextlib.suppress(OSError):
                while part := await reader.read(65_536):
                    seen.extend(part)
                    writer.write(part)
                    await writer.drain()
                writer.close()

    plane = TcpPlane(identity("receiver", BLOCK_BYTES), tls=authority.peer("client").client)
    async with Tap().to(server.address) as link:
        await plane.fetch(link.address, source.request(ORDER), places.into, 10)
        again = await plane.fetch(link.address, source.request(ORDER), places.into, 10)
        await plane.close()

    assert places.hold(source, ORDER)
    assert 1 == link.num_connections, "a connection under TLS is kept for reuse too"
    assert 0 == again.num_resumes
    assert len(seen) > NUM_BLOCKS * BLOCK_BYTES
    assert all(source.block(block_id)[1000:1032] not in seen for block_id in ORDER)


async def test_a_manager_that_another_authority_signed_gets_nothing(
    source: StandInSource, server: TcpServer, places: Places, authority: Authority, tmp_path: Path
) -> None:
    """It is told at once by either end, not at the deadline."""
    stranger = Authority(tmp_path / "stranger")
    trusting = replace(stranger.files("client"), transfer_tls_ca=authority.ca)
    contexts = {
        "is not trusted here": stranger.peer("client").client,
        "does not trust the certificate": transfer_tls(trusting).client,  # type: ignore[union-attr] # all is named
    }
    for reason, context in contexts.items():
        plane = TcpPlane(identity("receiver", BLOCK_BYTES), tls=context)
        async with asyncio.timeout(20):
            with pytest.raises(TransferIncompatibleError, match=reason):
                await plane.fetch(server.address, source.request(ORDER), places.into, 60)
        await plane.close()

    assert [] == source.asked
    assert bytes(len(places.memory)) == places.memory


async def test_a_client_without_tls_gets_nothing(
    source: StandInSource, server: TcpServer, places: Places
) -> None:
    plane = TcpPlane(identity("receiver", BLOCK_BYTES))
    with pytest.raises(TransferBrokenError):
        await plane.fetch(server.address, source.request(ORDER), places.into, 1)
    await plane.close()

    assert [] == source.asked


async def test_a_client_without_a_certificate_gets_nothing(
    source: StandInSource, server: TcpServer, places: Places, authority: Authority
) -> None:
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.load_verify_locations(authority.ca)
    plane = TcpPlane(identity("receiver", BLOCK_BYTES), tls=bare)
    with pytest.raises(TransferIncompatibleError, match="does not trust"):
        await plane.fetch(server.address, source.request(ORDER), places.into, 30)
    await plane.close()

    assert [] == source.asked


async def test_a_client_that_wants_tls_takes_nothing_in_the_clear(
    source: StandInSource, places: Places, authority: Authority
) -> None:
    server = await TcpServer.start(source)
    plane = TcpPlane(identity("receiver", BLOCK_BYTES), tls=authority.peer("client").client)
    with pytest.raises((TransferIncompatibleError, TransferBrokenError)):
        await plane.fetch(server.address, source.request(ORDER), places.into, 1)
    await plane.close()
    await server.stop()

    assert [] == source.asked
    assert bytes(len(places.memory)) == places.memory


async def test_a_damaged_or_cut_connection_is_mended(
    source: StandInSource, server: TcpServer, places: Places, authority: Authority
) -> None:
    """A flipped byte breaks the record, so the connection; the rest is asked for anew."""
    for link in (Link(flip_at=700_000), Link(cut_after=700_000)):
        plane = TcpPlane(identity("receiver", BLOCK_BYTES), tls=authority.peer("client").client)
        async with link.to(server.address):
            fetched = await plane.fetch(link.address, source.request(ORDER), places.into, 20)
            await plane.close()

        assert places.hold(source, ORDER)
        assert fetched.num_resumes >= 1


async def test_a_server_stops_while_a_client_says_nothing(
    server: TcpServer,
) -> None:
    """A handshake that never comes holds nothing up."""
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port))):
        async with asyncio.timeout(10):
            await server.stop()


@pytest.mark.nats
async def test_https_is_served_and_http_is_not(start: Any, authority: Authority) -> None:
    cert, key = authority.sign("gateway", "127.0.0.1", "localhost")
    stack = await start(*OVER_HTTP, gateway={"tls_cert": cert, "tls_key": key})
    url = stack.one("gateway").http_url
    trusting = ssl.create_default_context(cafile=str(authority.ca))
    body = {"prompt": "Hello", "max_tokens": 5, "temperature": 0}
    async with httpx.AsyncClient(base_url=url, verify=trusting, timeout=15) as http:
        plain = await http.post("/v1/completions", json=body)
        streamed = await http.post("/v1/completions", json=body | {"stream": True})
    async with httpx.AsyncClient(timeout=15) as http:
        with pytest.raises(httpx.HTTPError):
            await http.get(url.replace("https:", "http:") + "/health")
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await http.get(url + "/health")

    assert url.startswith("https://")
    assert (200, 200) == (plain.status_code, streamed.status_code)
    assert streamed.text.rstrip().endswith("[DONE]")


def test_files_that_do_not_fit_are_refused_by_name(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.sign("one")
    _, other = authority.sign("two")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    missing = tmp_path / "missing.pem"
    cases = [
        (missing, key, r"--tls-cert .*missing.pem can't be read: No such file"),
        (cert, missing, r"--tls-key .*missing.pem can't be read: No such file"),
        (cert, other, "the key is not the certificate's"),
        (text, key, r"--tls-cert .*text.pem and --tls-key .* can't be used"),
        (cert, text, r"--tls-cert .* and --tls-key .*text.pem can't be used"),
    ]
    for tls_cert, tls_key, message in cases:
        with pytest.raises(ConfigurationError, match=message):
            http_tls(HttpTlsFiles(tls_cert=tls_cert, tls_key=tls_key))
    with pytest.raises(ConfigurationError, match=r"--transfer-tls-ca .* no certificate in PEM"):
        transfer_tls(replace(authority.files("kv"), transfer_tls_ca=text))


def test_half_of_the_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--tls-key must be given too"):
        GatewayConfig(cache_dir=tmp_path, tls_cert=tmp_path / "a")
    with pytest.raises(ConfigurationError, match="--transfer-tls-key and --transfer-tls-ca must"):
        KvConfig(cache_dir=tmp_path, arena_dir=tmp_path, transfer_tls_cert=tmp_path / "a")
