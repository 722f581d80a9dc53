"""A command of slipstream that is looked at: a process of its own, whose stacks are found."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from slipstream.services.cli.run_directory import default_base
from slipstream.shared.errors import ConfigurationError, SlipstreamError

_STOP_S = 30.0
_COMMANDS = ("bench", "run")


class CommandFailedError(SlipstreamError):
    """The command that was looked at went wrong; what it said stands above."""

    code = "command_failed"


def check_command(command: Sequence[str]) -> None:
    """Raise ConfigurationError for what starts no stack."""
    if command[0] not in _COMMANDS:
        raise ConfigurationError(
            f"slipstream profile -- {command[0]} ...: it looks at {' and '.join(_COMMANDS)}, which "
            "start stacks and end; for one that runs already give --nats"
        )


@contextlib.asynccontextmanager
async def started_command(command: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command of slipstream while a block does; what it prints is shown."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "slipstream.services.cli.main", *command),
        stdin=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(_STOP_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


def stacks_of(pid: int, base: Path | None = None) -> list[str]:
    """Return the NATS URLs of the stacks that a process supervises, as far as they are up."""
    found = []
    for directory in sorted((base or default_base()).glob(f"{pid}-*")):
        for ports_file in directory.glob("nats/nats-server_*.ports"):
            with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
                found.append(json.loads(ports_file.read_bytes())["nats"][0])
    return found
