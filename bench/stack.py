"""A stack to measure, as a user starts it."""

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from slipstream.shared.bus.nats_bus import NatsBus

SLIPSTREAM = Path(sys.executable).parent / "slipstream"
_READY = re.compile(r"Slipstream is ready on (nats://\S+)")


@contextlib.contextmanager
def running_stack(*options: str) -> Iterator[str]:
    """Run a stack, `slipstream up` with some options; yield its address."""
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen(
            [SLIPSTREAM, "up", "--port", "0", "--log-level", "error", *options],
            cwd=directory,
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
                yield found[1]
            finally:
                process.terminate()


@contextlib.asynccontextmanager
async def connected(url: str, name: str) -> AsyncIterator[NatsBus]:
    """Connect for as long as a block runs."""
    bus = await NatsBus.connect(url, name)
    try:
        yield bus
    finally:
        await bus.close()
