"""Runs a benchmark's command in a process of its own, as a user does."""

import asyncio
import os
import sys
from collections.abc import Mapping

_BENCH = (sys.executable, "-P", "-m", "slipstream.services.cli.main", "bench")
_FOREIGN = ("SLIPSTREAM_", "OTEL_")
_COMMAND_S = 90.0


async def run_bench(
    *arguments: str, variables: Mapping[str, str] | None = None
) -> tuple[int | None, str, str]:
    """Return its status, and what it wrote to standard output and to standard error."""
    environment = {name: each for name, each in os.environ.items() if not name.startswith(_FOREIGN)}
    process = await asyncio.create_subprocess_exec(
        *(*_BENCH, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**environment, **(variables or {})},
    )
    try:
        async with asyncio.timeout(_COMMAND_S):
            printed, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, printed.decode(), said.decode()
