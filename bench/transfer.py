"""
Measure how fast KV blocks travel between two hosts, in the clear and under TLS.

For example:

    python bench/transfer.py --rounds 40 --json FILE

As root the two hosts are network namespaces joined by a veth pair, otherwise (said so) loopback.
Each round is one transfer of each way, in turn; `plain` is `sendfile` into `recv_into`. The NATS
plane is measured on loopback, where it has a server of its own.
"""

import argparse
import asyncio
import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import trustme
from host_network import host_network, why_not

from slipstream.services.cli.bench_hosts import HostPlan, Hosts, hosts_directory
from slipstream.shared.ids import HostId
from slipstream.shared.kv.arena import Arena
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.kv.transfer.nats import NatsPlane, NatsServer
from slipstream.shared.kv.transfer.plane import FetchRequest, PlaneIdentity, TransferPlane
from slipstream.shared.kv.transfer.tcp import TcpPlane, TcpServer
from slipstream.shared.measure.estimate import Estimate, report, table
from slipstream.shared.tls import PeerTls, TransferTlsFiles, transfer_tls

# A block of SmolLM2-135M in int8: 391,680 bytes.
_LAYOUT = KvLayout(num_layers=30, num_kv_heads=3, head_dim=64, dtype="int8")
_NUM_BLOCKS = 164  # 64 MB
_NUM_BYTES = _NUM_BLOCKS * _LAYOUT.block_bytes
_NUM_WARM_UPS = 2  # rounds
_DEADLINE_S = 60.0


def main() -> None:
    """Parse the options; measure, or be one of the two hosts."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--source", help=argparse.SUPPRESS)
    parser.add_argument("--receiver", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--nats", default="", help=argparse.SUPPRESS)
    parser.add_argument("--certificates", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.source is not None:
        asyncio.run(_be_source(options.source, options.nats, options.certificates))
    elif options.receiver is not None:
        received = _be_receiver(options.receiver, options.rounds, options.certificates)
        print(json.dumps(asyncio.run(received)))
    else:
        # An end from outside goes through `finally` too: namespaces outlive their maker.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        _measure(options.rounds, options.json)


def _measure(num_rounds: int, path: Path | None) -> None:
    with _two_hosts() as hosts:
        over_tcp = _run(hosts, num_rounds)
    with _nats_server() as url:
        over_nats = _run(_Hosts("127.0.0.1", "loopback"), num_rounds, url)
    rates = [Estimate.of(name, samples) for name, samples in (over_tcp | over_nats).items()]
    ratios = [
        Estimate.of_ratio("tcp / plain", over_tcp["tcp"], over_tcp["plain"]),
        Estimate.of_ratio("tls / tcp", over_tcp["tls"], over_tcp["tcp"]),
    ]
    print(f"{_NUM_BLOCKS} blocks of {_LAYOUT.block_bytes} bytes a transfer, TCP over {hosts.link}")
    print(table(rates, "MB/s"))
    print(table(ratios, "ratio"))
    if path is not None:
        settings = {"link": hosts.link, "rounds": num_rounds, "bytes": _NUM_BYTES}
        path.write_text(json.dumps(report([*rates, *ratios], settings, "MB/s"), indent=1))


@dataclass(frozen=True)
class _Hosts:
    source: str  # its address
    link: str
    enter_source: Sequence[str] = ()
    enter_receiver: Sequence[str] = ()


@contextlib.contextmanager
def _two_hosts() -> Iterator[_Hosts]:
    """Two namespaces with a link, while a block runs; loopback where they can't be had."""
    if (reason := why_not()) is not None:
        print(f"{reason}: loopback instead")
        yield _Hosts("127.0.0.1", "loopback")
        return
    with host_network() as network:
        near, far = network.near, network.far
        yield _Hosts(near.address, f"{network.link}, unshaped", near.enter, far.enter)


@contextlib.contextmanager
def _nats_server() -> Iterator[str]:
    with hosts_directory() as directory:
        server = HostPlan(name="server", roles=())
        with Hosts(directory, [server], {}) as hosts:
            yield hosts.nats_url


def _run(hosts: _Hosts, num_rounds: int, nats: str = "") -> dict[str, list[float]]:
    """Return MB/s of each round by way."""
    with hosts_directory() as certificates:
        _write_certificates(certificates)
        program = [sys.executable, __file__, "--rounds", str(num_rounds), "--nats", nats]
        program += ["--certificates", str(certificates)]
        return _run_both(hosts, program, 60 + 10 * num_rounds)


def _write_certificates(directory: Path) -> None:
    """Make an authority and one certificate, which both hosts show."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    signed = authority.issue_cert("kv")
    signed.private_key_pem.write_to_path(directory / "key.pem")
    (cert,) = signed.cert_chain_pems
    cert.write_to_path(directory / "cert.pem")


def _tls(certificates: Path) -> PeerTls:
    found = transfer_tls(
        TransferTlsFiles(
            transfer_tls_cert=certificates / "cert.pem",
            transfer_tls_key=certificates / "key.pem",
            transfer_tls_ca=certificates / "ca.pem",
        )
    )
    assert found is not None, "all files are named"
    return found


def _run_both(hosts: _Hosts, program: list[str], timeout_s: float) -> dict[str, list[float]]:
    source = subprocess.Popen(
        [*hosts.enter_source, *program, "--source", hosts.source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert source.stdout is not None, "asked for above"
    try:
        offer = source.stdout.readline().decode()
        done = subprocess.run(
            [*hosts.enter_receiver, *program, "--receiver", offer],
            check=True,
            stdout=subprocess.PIPE,
            timeout=timeout_s,
        )
    finally:
        source.communicate()  # the end of its input is the end of it
    rates: dict[str, list[float]] = json.loads(done.stdout)
    return rates


class _Source:
    """An arena whose blocks anybody may read."""

    def __init__(self, arena: Arena) -> None:
        self.identity = _identity("source", arena)
        self.blocks = arena.blocks
        self.generations = arena.generations

    def may_read(self, *_question: object) -> str | None:
        return None


def _identity(name: str, arena: Arena) -> PlaneIdentity:
    return PlaneIdentity(name, arena.epoch, arena.layout, "bench", arena.block_bytes)


@contextlib.contextmanager
def _arena() -> Iterator[Arena]:
    with hosts_directory() as directory:
        arena = Arena.create(directory, HostId("host"), 1, _NUM_BLOCKS, _LAYOUT)
        try:
            yield arena
        finally:
            arena.close()


async def _be_source(host: str, nats: str, certificates: Path) -> None:
    with _arena() as arena:
        arena.blocks[:] = random.Random(0).randbytes(_NUM_BYTES)
        source = _Source(arena)
        if nats:
            servers: list[NatsServer | TcpServer] = [await NatsServer.start(source, nats)]
            offer = {"nats": nats}
        else:
            in_the_clear = await TcpServer.start(source, host)
            secured = await TcpServer.start(source, host, tls=_tls(certificates).server)
            servers = [in_the_clear, secured]
            plain = socket.create_server((host, 0))
            threading.Thread(target=_send_plain, args=(plain, arena.path), daemon=True).start()
            offer = {
                "tcp": in_the_clear.address,
                "tls": secured.address,
                "plain": plain.getsockname(),
            }
        print(json.dumps(offer), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for server in servers:
            await server.stop()


def _send_plain(listening: socket.socket, path: Path) -> None:
    sock, _ = listening.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with path.open("rb") as file:
        start = path.stat().st_size - _NUM_BYTES
        while sock.recv(1):
            sock.sendfile(file, start, _NUM_BYTES)


async def _be_receiver(
    offer: dict[str, str], num_rounds: int, certificates: Path
) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in offer}
    with _arena() as arena, contextlib.ExitStack() as stack:
        identity = _identity("receiver", arena)
        planes: dict[str, TransferPlane] = {}
        if "nats" in offer:
            planes["nats"] = await NatsPlane.connect(identity, offer["nats"])
        else:
            planes["tcp"] = TcpPlane(identity)
            planes["tls"] = TcpPlane(identity, tls=_tls(certificates).client)
            plain = stack.enter_context(socket.create_connection(tuple(offer["plain"])))
        for round_number in range(num_rounds + _NUM_WARM_UPS):
            for name, where in offer.items():
                started = time.perf_counter()
                if name == "plain":
                    _receive_plain(plain, arena.blocks)
                else:
                    address = "source" if name == "nats" else where
                    await _fetch(planes[name], address, arena)
                seconds = time.perf_counter() - started
                if round_number >= _NUM_WARM_UPS:
                    rates[name].append(_NUM_BYTES / seconds / 1e6)
        for plane in planes.values():
            await plane.close()
    return rates


def _receive_plain(sock: socket.socket, into: memoryview) -> None:
    sock.send(b"x")
    num_received = 0
    while num_received < _NUM_BYTES:
        num_received += sock.recv_into(into[num_received:])


async def _fetch(plane: TransferPlane, address: str, arena: Arena) -> None:
    size = _LAYOUT.block_bytes
    order = random.Random(1).sample(range(_NUM_BLOCKS), _NUM_BLOCKS)
    places = [arena.blocks[index * size : (index + 1) * size] for index in order]
    request = FetchRequest("transfer", "lease", order, [0] * _NUM_BLOCKS)
    await plane.fetch(address, request, places, _DEADLINE_S)


if __name__ == "__main__":
    main()
