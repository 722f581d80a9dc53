"""What runs in a stack: which processes, in which environment. Pure; the supervisor starts them."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from slipstream.services.cli.child import ChildSpec
from slipstream.services.cli.nats_keys import KeySet
from slipstream.services.cli.run_directory import RunDirectory
from slipstream.shared.config import (
    DEFAULT_MODEL,
    DraftKind,
    Engine,
    Eviction,
    KvChoice,
    WeightChoice,
)
from slipstream.shared.config_checks import check_hash_bits
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.lifecycle import read_status
from slipstream.shared.messages.common import Role, Route
from slipstream.shared.scheduling.queue import Policy

# Workers, and the gateway, are given this long to finish what runs: less than the supervisor waits
# for them.
_WORKER_DRAIN_S = 2.0
# By then the workers are gone, and nothing they could wait for will happen.
_OTHER_DRAIN_S = 0.5

_NUM_PORTS = 65536
_YES_OR_NO = {None: None, True: "1", False: "0"}
_WORKERS = 0
_WHAT_WORKERS_NEED = 1


@dataclass(frozen=True, kw_only=True)
class StackSettings:
    """What `up` and `run` are asked for; what is None stays as the environment says."""

    model: str = DEFAULT_MODEL
    cache_dir: Path
    route: Route = "auto"
    policy: Policy | None = None
    engine: Engine = "auto"
    weight_format: WeightChoice = "auto"
    kv_format: KvChoice = "auto"
    is_test_mode: bool = False
    num_scheduler: int = 1  # one is active, the others stand by
    num_prefill: int = 1
    num_decode: int = 1
    num_draft: int = 1
    draft_kind: DraftKind | None = None
    draft_model: str | None = None
    kv_memory: str | None = None
    is_prefix_cache_on: bool | None = None
    eviction: Eviction | None = None
    block_hash_bits: int | None = None
    num_threads: int | None = None
    log_level: str | None = None
    is_log_json: bool | None = None
    metrics_port: int | None = None  # of the first service; 0: a free one for each; None: none
    http_port: int | None = None  # of the gateway; 0: a free one; None: there is none

    def __post_init__(self) -> None:
        if self.engine == "fake" and not self.is_test_mode:
            raise ConfigurationError("--engine fake gives made-up tokens: it needs --test-mode")
        if self.route == "remote" and not self.num_prefill:
            raise ConfigurationError("--route remote needs a prefill worker: --prefill 1 or more")
        if self.block_hash_bits is not None:
            check_hash_bits(self.block_hash_bits, is_test_mode=self.is_test_mode)
        if self.metrics_port is not None and self.metrics_port + self.num_services > _NUM_PORTS:
            raise ConfigurationError(
                f"--metrics-port {self.metrics_port} leaves no port for each of "
                f"{self.num_services} services: take a lower one, or 0 for free ones"
            )

    @property
    def num_services(self) -> int:
        """All processes but the NATS server."""
        num_workers = self.num_prefill + self.num_decode + self.num_draft
        return 1 + self.num_scheduler + num_workers + self.num_gateway

    @property
    def num_gateway(self) -> int:
        """One, or none."""
        return int(self.http_port is not None)


CommandOf = Callable[[Role], tuple[str, ...]]


def service_command(role: Role) -> tuple[str, ...]:
    """Return the command line of a service: this interpreter, without the working directory."""
    return (sys.executable, "-P", "-m", "slipstream.services.cli.main", role)


def plan_services(
    settings: StackSettings,
    run: RunDirectory,
    nats_url: str,
    environment: Mapping[str, str],
    command_of: CommandOf = service_command,
    keys: KeySet | None = None,
) -> list[ChildSpec]:
    """Return scheduler, KV manager, workers and gateway; `environment` is the supervisor's own."""
    base = {**environment, **_shared_variables(settings, run, nats_url, environment)}
    roles: list[tuple[Role, int]] = [
        ("scheduler", settings.num_scheduler),
        ("kv", 1),
        ("prefill", settings.num_prefill),
        ("decode", settings.num_decode),
        ("draft", settings.num_draft),
        ("gateway", settings.num_gateway),
    ]
    named: list[tuple[Role, str]] = [
        (role, f"{role}-{position + 1}" if count > 1 else role)
        for role, count in roles
        for position in range(count)
    ]
    return [
        _service(
            role,
            name,
            run,
            base | _metrics_variables(settings, number) | _key_variables(keys, role),
            command_of(role),
        )
        for number, (role, name) in enumerate(named)
    ]


def _service(
    role: Role,
    name: str,
    run: RunDirectory,
    environment: Mapping[str, str],
    command: tuple[str, ...],
) -> ChildSpec:
    status_file = run.status_file(name)
    is_worker = role not in ("scheduler", "kv")
    variables = {
        "SLIPSTREAM_STATUS_FILE": str(status_file),
        "SLIPSTREAM_DRAIN_S": str(_WORKER_DRAIN_S if is_worker else _OTHER_DRAIN_S),
    }

    def is_ready(pid: int) -> bool:
        status = read_status(status_file)
        return status is not None and status.pid == pid and status.state == "ready"

    return ChildSpec(
        name=name,
        command=command,
        environment={**environment, **variables},
        more_environment=_KeptPort(status_file).variables if role == "gateway" else dict,
        is_ready=is_ready,
        stop_phase=_WORKERS if is_worker else _WHAT_WORKERS_NEED,
    )


class _KeptPort:
    """The port that a gateway took where it was told to take any: its clients know it by now."""

    def __init__(self, status_file: Path) -> None:
        self._status_file = status_file
        self._port: int | None = None

    def variables(self) -> dict[str, str]:
        """Return what tells the gateway's next process to take it again."""
        status = read_status(self._status_file)
        if self._port is None and status is not None and status.http_url is not None:
            self._port = urlsplit(status.http_url).port
        return {} if self._port is None else {"SLIPSTREAM_HTTP_PORT": str(self._port)}


def _metrics_variables(settings: StackSettings, number: int) -> dict[str, str]:
    """Give each service a port of its own: they share the host."""
    port = settings.metrics_port
    if port is None:
        return {}
    return {"SLIPSTREAM_METRICS_PORT": str(port + number if port else 0)}


def _key_variables(keys: KeySet | None, role: Role) -> dict[str, str]:
    """Give each service its own key, and none of those that the environment may name."""
    if keys is None:
        return {}
    access = keys.access(role)
    return {
        "SLIPSTREAM_NATS_NKEY": str(access.nkey),
        "SLIPSTREAM_NATS_CA": str(access.ca or ""),
        "SLIPSTREAM_NATS_CERT": "",
        "SLIPSTREAM_NATS_KEY": "",
    }


def _shared_variables(
    settings: StackSettings, run: RunDirectory, nats_url: str, environment: Mapping[str, str]
) -> dict[str, str]:
    variables = {
        "PYTHONSAFEPATH": "1",
        "SLIPSTREAM_NATS_URL": nats_url,
        "SLIPSTREAM_ARENA_DIR": str(run.arena_dir),
        "SLIPSTREAM_MODEL": settings.model,
        "SLIPSTREAM_CACHE_DIR": str(settings.cache_dir),
        "SLIPSTREAM_ROUTE": settings.route,
        "SLIPSTREAM_ENGINE": settings.engine,
        "SLIPSTREAM_FORMAT": settings.weight_format,
        "SLIPSTREAM_KV_FORMAT": settings.kv_format,
        "SLIPSTREAM_TEST_MODE": "1" if settings.is_test_mode else "0",
    }
    if settings.num_draft and "SLIPSTREAM_DRAFT_PLACE" not in environment:
        variables["SLIPSTREAM_DRAFT_PLACE"] = "draft"
    return variables | _optional_variables(settings)


def _optional_variables(settings: StackSettings) -> dict[str, str]:
    """Return what was asked for; the rest stays as the environment says."""
    asked = {
        "SLIPSTREAM_DRAFT_KIND": settings.draft_kind,
        "SLIPSTREAM_DRAFT_MODEL": settings.draft_model,
        "SLIPSTREAM_POLICY": settings.policy,
        "SLIPSTREAM_KV_MEMORY": settings.kv_memory,
        "SLIPSTREAM_PREFIX_CACHE": _YES_OR_NO[settings.is_prefix_cache_on],
        "SLIPSTREAM_EVICTION": settings.eviction,
        "SLIPSTREAM_BLOCK_HASH_BITS": settings.block_hash_bits,
        "SLIPSTREAM_THREADS": settings.num_threads,
        "SLIPSTREAM_HTTP_PORT": settings.http_port,
        "SLIPSTREAM_LOG_LEVEL": settings.log_level,
        "SLIPSTREAM_LOG_JSON": _YES_OR_NO[settings.is_log_json],
    }
    return {name: str(value) for name, value in asked.items() if value is not None}
