"""Fixtures of every kind of test."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import settings

from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.model.store import default_cache_dir, resolve_model

# What a failed comparison of theirs says is all that a random test leaves.
pytest.register_assert_rewrite("tests.soup.again", "tests.soup.checks")

# Who runs the tests in the background may have Ctrl-C ignored, which all that they start inherits.
signal.signal(signal.SIGINT, signal.default_int_handler)

# For `make sanitize`, where a kernel takes ten times as long.
settings.register_profile("sanitize", max_examples=2)


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The default model, fetched and converted on first use."""

    def report(line: str) -> None:
        print(line, file=sys.stderr)  # noqa: T201 - progress of a long step

    return resolve_model("smollm2-135m", default_cache_dir(), report=report)


def _pack(weight_format: str) -> None:
    command = [sys.executable, "-P", "-m", "slipstream.services.cli.main", "model", "pack"]
    subprocess.run([*command, "--format", weight_format], check=True)


@pytest.fixture(scope="session")
def packed_float32(model_dir: Path) -> None:
    """The default model's weights, packed once for all processes that map them."""
    _pack("float32")


@pytest.fixture(scope="session")
def packed_bf16(model_dir: Path) -> None:
    """The same in bf16."""
    _pack("bf16")


@pytest.fixture(scope="session")
def packed_int8(model_dir: Path) -> None:
    """The same in int8; a minute the first time."""
    _pack("int8")


@pytest.fixture(scope="session")
def packed_int4(model_dir: Path) -> None:
    """The same in int4, the default; a minute the first time."""
    _pack("int4")


class NatsServer:
    """A real nats-server of our own on a free port, which a restart keeps."""

    def __init__(self, directory: Path, *, has_jetstream: bool = True) -> None:
        self.url = ""
        self._directory = directory
        self._has_jetstream = has_jetstream
        self._process: subprocess.Popen[bytes] | None = None
        self.settings_file = directory / "nats.conf"
        self.settings_file.write_text("max_payload: 8MB\n", encoding="utf-8")

    def start(self) -> None:
        """Start, and return when connections are accepted."""
        binary = Path(sys.executable).parent / "nats-server"
        assert binary.exists(), f"{binary} is missing: `make setup` installs it"
        port = urlsplit(self.url).port or -1
        command = [binary, "-c", self._directory / "nats.conf", "-a", "127.0.0.1", "-p", str(port)]
        command += ["--ports_file_dir", self._directory]
        if self._has_jetstream:
            command += ["-js", "-sd", self._directory]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 10
        while not self._is_up():
            assert self._process.poll() is None, self._said()
            assert time.monotonic() < deadline, f"nats-server isn't up after 10 s: {self._said()}"
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop, and return when the process is gone."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)
        self._process = None

    def _is_up(self) -> bool:
        assert self._process is not None, "start() has made it"
        try:
            (ports,) = self._directory.glob(f"*_{self._process.pid}.ports")
            self.url = json.loads(ports.read_bytes())["nats"][0]
            where = urlsplit(self.url)
            socket.create_connection((str(where.hostname), where.port or 0), 1).close()
        except (ValueError, OSError):
            return False
        return True

    def _said(self) -> str:
        return (self._directory / "log").read_text(encoding="utf-8", errors="replace")


@contextlib.contextmanager
def _running(server: NatsServer) -> Iterator[NatsServer]:
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """The server that tests share: subjects must be their own, and it stays up."""
    with _running(NatsServer(tmp_path_factory.mktemp("nats"))) as server:
        yield server


@pytest.fixture
def own_nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server for one test, which may stop and start it."""
    with _running(NatsServer(tmp_path)) as server:
        yield server


@pytest.fixture
def plain_nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server for one test, which stores nothing."""
    with _running(NatsServer(tmp_path, has_jetstream=False)) as server:
        yield server


@pytest.fixture
async def nats_bus(nats_server: NatsServer) -> AsyncIterator[NatsBus]:
    """A connection to the shared server."""
    bus = await NatsBus.connect(nats_server.url, "test")
    yield bus
    await bus.close()
