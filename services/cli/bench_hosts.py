"""The services of one host or several, as processes of ours, to be measured or hurt."""

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from slipstream.services.cli.nats_server import find_program
from slipstream.services.cli.run_directory import SHARED_MEMORY
from slipstream.services.cli.settings import PREFIX
from slipstream.services.cli.stack import service_command
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.lifecycle import read_status
from slipstream.shared.messages.common import Role

_START_S = 120.0
_STOP_S = 10.0
_POLL_S = 0.02
_NATS_SETTINGS = "max_payload: 8MB\n"


class HostsError(SlipstreamError):
    """The services to measure did not come up, or did not end well."""

    code = "hosts_failed"


@contextlib.contextmanager
def hosts_directory() -> Iterator[Path]:
    """Yield a directory for arenas while a block runs: in memory, as those of `slipstream up`."""
    parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="slip-", dir=parent) as directory:
        yield Path(directory)


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """What runs on a host, and how to get there."""

    name: str
    roles: Sequence[Role]
    enter: Sequence[str] = ()  # what a command begins with, to run there
    transfer_listen: str = "127.0.0.1:0"


@dataclass(frozen=True)
class Service:
    """One process."""

    name: str  # its host and role
    process: "subprocess.Popen[bytes]"
    status_file: Path
    log_file: Path


class Hosts:
    """Runs a NATS server on the first host, then the services of all; a context manager."""

    def __init__(
        self,
        directory: Path,
        plans: Sequence[HostPlan],
        variables: Mapping[str, object],
        nats_address: str = "127.0.0.1",
    ) -> None:
        """`variables` are settings of all services, by the name of their environment variable."""
        self._directory = directory
        self._plans = plans
        self._variables = variables
        self._nats_address = nats_address
        self._port = 0
        self.services: list[Service] = []

    @property
    def nats_url(self) -> str:
        """Where the services find the server."""
        return f"nats://{self._nats_address}:{self._port}"

    @property
    def port(self) -> int:
        """The server's port, on whichever address it is reached."""
        return self._port

    def __enter__(self) -> Self:
        try:
            self._start_nats()
            for plan in self._plans:
                for role in plan.roles:
                    self._start(plan, role)
            for service in self.services[1:]:
                self._wait_ready(service)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def one(self, name: str) -> Service:
        """Return a service by the name of its host and its role: `far-prefill`."""
        return next(each for each in self.services if each.name == name)

    def close(self) -> None:
        """End all, the server last; what doesn't end in time is killed."""
        for service in reversed(self.services):
            service.process.terminate()
            try:
                service.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                service.process.kill()
                service.process.wait(_STOP_S)
        self.services = []

    def _start_nats(self) -> None:
        """Listen on this machine's loopback, or in a network of its own on every link there."""
        enter = self._plans[0].enter
        (self._directory / "nats.conf").write_text(_NATS_SETTINGS, encoding="utf-8")
        address = "0.0.0.0" if enter else self._nats_address  # noqa: S104 # of that network alone
        command: list[str | Path] = [*enter, find_program()]
        command += ["-c", self._directory / "nats.conf", "-a", address, "-p", "-1"]
        command += ["-js", "-sd", self._directory / "nats", "--ports_file_dir", self._directory]
        service = self._run("nats", command, {})
        deadline_s = time.monotonic() + _START_S
        while not (ports := list(self._directory.glob("nats-server_*.ports"))):
            self._check(service, deadline_s)
        text = ports[0].read_text(encoding="utf-8")
        self._port = int(text.partition("nats://")[2].partition('"')[0].rpartition(":")[2])

    def _start(self, plan: HostPlan, role: Role) -> None:
        name = f"{plan.name}-{role}"
        settings = {
            "NATS_URL": self.nats_url,
            "ARENA_DIR": self._directory / plan.name,
            "PARENT_PID": os.getpid(),
            "LOG_JSON": 1,
            "DRAIN_S": 1,
            "TRANSFER_LISTEN": plan.transfer_listen,
            "STATUS_FILE": self._directory / f"{name}.json",
            **self._variables,
        }
        variables = {f"{PREFIX}{key}": str(value) for key, value in settings.items()}
        self._run(name, [*plan.enter, *service_command(role)], variables)

    def _run(
        self, name: str, command: Sequence[str | Path], variables: Mapping[str, str]
    ) -> Service:
        log_file = self._directory / f"{name}.log"
        kept = {each: value for each, value in os.environ.items() if not each.startswith(PREFIX)}
        with log_file.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 # our own programs
                command,
                cwd=self._directory,
                env={**kept, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        service = Service(name, process, self._directory / f"{name}.json", log_file)
        self.services.append(service)
        return service

    def _wait_ready(self, service: Service) -> None:
        deadline_s = time.monotonic() + _START_S
        while (status := read_status(service.status_file)) is None or status.state != "ready":
            self._check(service, deadline_s)

    def _check(self, service: Service, deadline_s: float) -> None:
        if service.process.poll() is not None or time.monotonic() > deadline_s:
            said = service.log_file.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise HostsError(f"{service.name} did not come up: {said}")
        time.sleep(_POLL_S)
