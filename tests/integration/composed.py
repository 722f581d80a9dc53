"""The frame of the stack that compose.yaml describes: volumes, keys in them, a NATS server."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from slipstream.shared.model.store import default_cache_dir

from . import compose_runner
from .compose_runner import Compose

ROOT = Path(__file__).parents[2]
CACHE_DIR = Path(os.environ.get("SLIPSTREAM_CACHE_DIR") or default_cache_dir())
KEPT_PATHS = (ROOT, Path(sys.prefix), Path(sys.base_prefix), CACHE_DIR)
COMPOSE_FILE = ROOT / "compose.yaml"
NATS_CONF = ROOT / "deploy" / "nats.conf"
_KEYS_S = 30.0


@contextlib.contextmanager
def _nats(compose: Compose, keys: Path, directory: Path) -> Iterator[str]:
    """A server booted from the shipped file, healthy by the declared check, on loopback."""
    service = compose["services"]["nats"]
    assert ["--config", "/etc/nats/nats.conf", "--addr", "0.0.0.0"] == service["command"][:4]
    assert "keys-nats:/etc/nats/keys/nats:ro" in service["volumes"]
    (directory / "keys").mkdir(parents=True)
    (directory / "keys" / "nats").symlink_to(keys)
    shutil.copy(NATS_CONF, directory)
    server = Path(sys.executable).parent / "nats-server"
    process = subprocess.Popen(
        [
            *(server, "--config", directory / NATS_CONF.name, "--addr", "127.0.0.1"),
            *("--port", "-1", "--http_port", "-1", "--store_dir", directory / "data"),
            *("--ports_file_dir", directory),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield _wait_for_nats(compose, directory / f"nats-server_{process.pid}.ports")
    finally:
        process.terminate()
        process.wait(5)


def _wait_for_nats(compose: Compose, ports_file: Path) -> str:
    check = compose["services"]["nats"]["healthcheck"]["test"][-1]
    for _ in range(250):
        if ports_file.exists() and (text := ports_file.read_text()):
            ports = json.loads(text)
            url = check.replace("http://127.0.0.1:8222", ports["monitoring"][0])
            try:
                with urllib.request.urlopen(url, timeout=2) as response:
                    assert 200 == response.status
                    return str(ports["nats"][0].removeprefix("nats://"))
            except urllib.error.HTTPError as error:
                error.close()
        time.sleep(0.02)
    raise AssertionError("nats-server is not healthy")


@contextlib.contextmanager
def running(compose: Compose, directory: Path) -> Iterator[compose_runner.ComposeRunner]:
    """Volumes, keys in them and a server; the rest is the caller's to start."""
    dockerfile = ROOT / "deploy" / "Dockerfile"
    image = compose_runner.read_image_environment(dockerfile)
    (directory / "work").mkdir()
    hosts = {"jaeger:4318": f"127.0.0.1:{unused_port()}"}
    runner = compose_runner.ComposeRunner(
        compose=compose,
        image_environment={**image, "SLIPSTREAM_CACHE_DIR": str(CACHE_DIR)},
        # Nobody listens for traces: services must not mind.
        hosts=hosts,
        kept_paths=list(KEPT_PATHS),
        work_dir=directory / "work",
        image_folders=compose_runner.read_image_folders(dockerfile),
    )
    with runner:
        runner.complete("keys", _KEYS_S)
        with _nats(compose, runner.source_of("keys-nats"), directory / "etc") as address:
            hosts["nats:4222"] = address
            yield runner


def unused_port() -> int:
    """Return a port of loopback that nobody has."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port
