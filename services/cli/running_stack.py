"""A whole stack while a block runs: run directory, NATS, services, and an end to all of it."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.services.cli.child import LogLine
from slipstream.services.cli.console import progress
from slipstream.services.cli.interruption import Interruption
from slipstream.services.cli.nats_keys import KeySet
from slipstream.services.cli.nats_server import NatsServer
from slipstream.services.cli.run_directory import RunDirectory, open_run_directory
from slipstream.services.cli.stack import CommandOf, StackSettings, plan_services, service_command
from slipstream.services.cli.supervisor import Supervisor
from slipstream.shared.bus.nats_access import NO_ACCESS, NatsAccess
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.lifecycle import read_status

_REACHABLE_S = 3.0


@dataclass(frozen=True)
class RunningStack:
    """Where it can be reached."""

    nats_url: str
    run: RunDirectory
    metrics_urls: Mapping[str, str] = field(default_factory=dict)  # by the service's name
    http_url: str | None = None  # of the gateway, where there is one
    access: NatsAccess = NO_ACCESS  # of the operator, who may look at all of it


@dataclass(frozen=True, kw_only=True)
class StackStart:
    """How a stack is started: its server, its environment, and where logs and progress go."""

    settings: StackSettings
    environment: Mapping[str, str]
    open_log: Callable[[RunDirectory], LogLine]
    nats_url: str | None = None  # None: an embedded server on `port`
    port: int = 0  # 0: a free one
    keys: KeySet | None = None  # for the server at that URL; the embedded one has its own
    base: Path | None = None  # where run directories are made; None: in shared memory
    command_of: CommandOf = service_command


@contextlib.asynccontextmanager
async def running_stack(
    start: StackStart, interruption: Interruption
) -> AsyncIterator[RunningStack]:
    """Start everything, wait until it is ready, and stop it at the end. Raises StackError."""
    with open_run_directory(start.base) as run:
        async with Supervisor(on_line=start.open_log(run), report=progress) as supervisor:
            interruption.at_once.append(supervisor.kill)
            nats_url, keys = start.nats_url, start.keys
            if nats_url is not None:
                await _check_reachable(nats_url, _access(keys))
            else:
                server = NatsServer(run.nats_dir, start.port)
                keys = server.keys
                await supervisor.start([server.spec(start.environment)])
                nats_url = server.url
            specs = plan_services(
                start.settings, run, nats_url, start.environment, start.command_of, keys
            )
            await supervisor.start(specs)
            metrics_urls = _metrics_urls(run, [each.name for each in specs])
            yield RunningStack(nats_url, run, metrics_urls, _http_url(run), _access(keys))


def _access(keys: KeySet | None) -> NatsAccess:
    return keys.access("operator") if keys is not None else NO_ACCESS


def _metrics_urls(run: RunDirectory, service_names: Iterable[str]) -> dict[str, str]:
    found = {name: read_status(run.status_file(name)) for name in service_names}
    return {
        name: status.metrics_url
        for name, status in found.items()
        if status is not None and status.metrics_url is not None
    }


def _http_url(run: RunDirectory) -> str | None:
    status = read_status(run.status_file("gateway"))
    return status.http_url if status is not None else None


async def _check_reachable(nats_url: str, access: NatsAccess) -> None:
    """Raise ConfigurationError at once, where each service would only find out by itself."""
    name = "slipstream-up"
    bus = await NatsBus.connect(nats_url, name, access, connect_timeout_s=_REACHABLE_S)
    await bus.close()
