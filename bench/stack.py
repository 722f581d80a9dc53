"""A stack to measure, as a user starts it."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from slipstream.services.cli.connection import operator_access
from slipstream.shared.bus.nats_bus import NatsBus

SLIPSTREAM = Path(sys.executable).parent / "slipstream"
_READY = re.compile(r"Slipstream is ready on (nats://\S+)")
_HTTP = re.compile(r" +http +(http://\S+)/v1")
_METRICS = re.compile(r" +metrics +(http://\S+) \((\S+)\)")
_LAST_LINE = "Ctrl-C"
_METRICS_S = 5.0
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class MeteredStack:
    """Where a stack and the metrics of its services are."""

    url: str
    metrics_urls: Mapping[str, str]  # by the service's name
    http_url: str = ""  # of the gateway

    def metrics(self, service: str) -> dict[str, float]:
        """Return a service's metrics, by name and the values of their labels: `kv_blocks free`."""
        url = urlsplit(self.metrics_urls[service])
        with contextlib.closing(HTTPConnection(url.netloc, timeout=_METRICS_S)) as connection:
            connection.request("GET", url.path)
            text = connection.getresponse().read().decode()
        return {
            " ".join([each.name.removeprefix("slipstream_"), *each.labels.values()]): each.value
            for family in text_string_to_metric_families(text)
            for each in family.samples
        }

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the gateway answers. Any: JSON."""
        url = urlsplit(self.http_url)
        with contextlib.closing(HTTPConnection(url.netloc, timeout=_METRICS_S)) as connection:
            connection.request("POST", path, json.dumps(body))
            found: dict[str, Any] = json.loads(connection.getresponse().read())
        return found


@contextlib.contextmanager
def running_stack(*options: str, variables: Mapping[str, str] = _NONE) -> Iterator[str]:
    """Run a stack, `slipstream up` with some options and variables; yield its address."""
    with _started(*options, variables=variables) as (url, _):
        yield url


@contextlib.contextmanager
def metered_stack(*options: str, variables: Mapping[str, str] = _NONE) -> Iterator[MeteredStack]:
    """Run a stack that counts, and shows what it holds."""
    with _started("--metrics-port", "0", *options, variables=variables) as (url, lines):
        metrics_urls, http_url = {}, ""
        for line in lines:
            if found := _HTTP.match(line):
                http_url = found[1]
            if found := _METRICS.match(line):
                metrics_urls[found[2]] = found[1]
            if line.startswith(_LAST_LINE):
                break
        yield MeteredStack(url, metrics_urls, http_url)


@contextlib.contextmanager
def _started(*options: str, variables: Mapping[str, str] = _NONE) -> Iterator[tuple[str, IO[str]]]:
    """Run a stack; yield its address, and what it prints from then on."""
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen(
            [SLIPSTREAM, "up", "--port", "0", *_gateway(options), "--log-level", "error", *options],
            cwd=directory,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None, "a pipe was asked for"
        with process:
            try:
                found = next(filter(None, map(_READY.match, process.stdout)), None)
                assert found is not None, "the stack did not come up"
                yield found[1], process.stdout
            finally:
                process.terminate()


@contextlib.asynccontextmanager
async def connected(url: str, name: str) -> AsyncIterator[NatsBus]:
    """Connect for as long as a block runs."""
    bus = await NatsBus.connect(url, name, operator_access(url))
    try:
        yield bus
    finally:
        await bus.close()


def _gateway(options: Sequence[str]) -> Sequence[str]:
    """Have no gateway, unless it is asked for."""
    return ("--http-port", "0") if "--gateway" in options else ("--gateway", "0")
