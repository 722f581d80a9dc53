"""The stacks that `slipstream bench serve` measures, and the engine beside them."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from slipstream.services.cli.bench_hosts import hosts_directory
from slipstream.services.cli.connection import operator_access
from slipstream.services.cli.console import progress
from slipstream.services.cli.interruption import Interruption
from slipstream.services.cli.log_file import LogFile
from slipstream.services.cli.plain_options import read_plainly
from slipstream.services.cli.run_directory import RunDirectory
from slipstream.services.cli.running_stack import StackStart, running_stack
from slipstream.services.cli.serve_bench_client import LoadClient
from slipstream.services.cli.settings import PARENT, ConfigT, build
from slipstream.services.cli.stack import StackSettings, plan_services
from slipstream.services.decode.main import open_in_process
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.config import DecodeConfig, KvConfig
from slipstream.shared.errors import ConfigurationError, SlipstreamError
from slipstream.shared.measure.load.engine import SteppedEngine
from slipstream.shared.worker.model_source import ServedModel

_NUM_LOG_LINES = 8


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A kind of stack, and what its services are told beyond its settings."""

    name: str
    settings: StackSettings
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """That of its services."""
        return {**os.environ, **self.variables}

    def with_budget(self, token_budget: int, prompt_step_ms: int) -> "Mode":
        """Return it with other bounds of what a step takes of prompts."""
        bounds = {
            "SLIPSTREAM_TOKEN_BUDGET": str(token_budget),
            "SLIPSTREAM_PROMPT_STEP_MS": str(prompt_step_ms),
        }
        return replace(self, variables={**self.variables, **bounds})

    def config(self, config_class: type[ConfigT], role: str) -> ConfigT:
        """Return what a service of its stack is configured with. Raises ConfigurationError."""
        nowhere = RunDirectory(Path())
        specs = plan_services(self.settings, nowhere, "nats://127.0.0.1", self.environment)
        spec = next(each for each in specs if each.name in (role, f"{role}-1"))
        values = read_plainly(config_class, (), spec.environment)
        if values is None:
            raise ConfigurationError(
                f"a SLIPSTREAM_ variable has a value that `slipstream {role}` can't read; "
                f"`slipstream {role} --help` names them"
            )
        values.pop(PARENT)
        return build(config_class, values)


def mode_of(settings: StackSettings) -> Mode:
    """Return the mode of a stack as it is asked for."""
    if settings.num_prefill == 0 or settings.route == "local":
        return Mode(name="aggregated", settings=settings)
    name = "disaggregated" if settings.route == "remote" else "auto"
    return Mode(name=name, settings=settings)


def named_mode(name: str, settings: StackSettings) -> Mode:
    """
    Return a mode of --compare.

    Both have as many threads a worker, and share the cores among their workers by one ledger.
    """
    if name == "aggregated":
        return Mode(name=name, settings=replace(settings, route="local", num_prefill=0))
    num_prefill = max(1, settings.num_prefill)
    return Mode(name=name, settings=replace(settings, route="remote", num_prefill=num_prefill))


@contextlib.asynccontextmanager
async def connected_client(url: str) -> AsyncIterator[LoadClient]:
    """Yield a client of a stack that runs already."""
    bus = await NatsBus.connect(url, "bench-serve", operator_access(url))
    try:
        yield LoadClient(bus)
    finally:
        await bus.close()


@contextlib.asynccontextmanager
async def started_client(mode: Mode, interruption: Interruption) -> AsyncIterator[LoadClient]:
    """Run a stack while a block does; yield its client. Raises StackError."""
    async with started_stack(mode, interruption) as url, connected_client(url) as client:
        yield client


@contextlib.asynccontextmanager
async def started_stack(mode: Mode, interruption: Interruption) -> AsyncIterator[str]:
    """Run a stack while a block does; yield its NATS URL. Raises StackError."""
    log = LogFile()
    start = StackStart(settings=mode.settings, environment=mode.environment, open_log=log.open)
    async with running_stack(start, interruption) as stack:
        try:
            yield stack.nats_url
        except SlipstreamError:
            for line in log.problems(_NUM_LOG_LINES):
                progress(line)
            raise


@contextlib.contextmanager
def opened_engine(mode: Mode, model: ServedModel, max_num_tokens: int) -> Iterator[SteppedEngine]:
    """Open the engine of a mode's decode worker, with the KV memory of its host at most."""
    config = mode.config(DecodeConfig, "decode")
    layout = model.layout
    kv = mode.config(KvConfig, "kv")
    num_blocks = kv.num_blocks or kv.memory_bytes // layout.block_bytes
    num_needed = layout.num_blocks_for(max_num_tokens)
    if num_needed >= num_blocks:
        raise ConfigurationError(
            f"the longest request takes {num_needed} KV blocks and --kv-memory holds "
            f"{num_blocks - 1}: give more memory, or shorten the requests"
        )
    num_blocks = min(num_blocks, 1 + config.num_seats * num_needed)
    with hosts_directory() as directory, open_in_process(config, directory, num_blocks) as engine:
        yield engine
