"""The supervisor over stand-ins. Usage: BASE MANNER; prints the NATS URL when all are ready."""

import asyncio
import os
import sys
from pathlib import Path

from slipstream.services.cli.interruption import Interruption
from slipstream.services.cli.running_stack import StackStart, running_stack
from slipstream.services.cli.stack import StackSettings
from slipstream.services.cli.up_command import forward_line
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.messages.common import Role

_STAND_IN = Path(__file__).with_name("stand_in_service.py")


async def serve(base: Path, manner: str, interruption: Interruption) -> None:
    """Run until a signal."""

    def command_of(role: Role) -> tuple[str, ...]:
        return (sys.executable, "-P", str(_STAND_IN), role, manner)

    start = StackStart(
        settings=StackSettings(cache_dir=base / "unused", num_prefill=1, num_decode=2),
        environment=os.environ,
        open_log=lambda _run: forward_line,
        base=base,
        command_of=command_of,
    )
    async with running_stack(start, interruption) as stack:
        print(stack.nats_url, flush=True)  # noqa: T201 - the test waits for this line
        await asyncio.Event().wait()


def main(base: Path, manner: str) -> int:
    """Run until a signal, or the error that the command line would show."""
    interruption = Interruption()
    try:
        asyncio.run(interruption.guard(serve(base, manner, interruption)))
    except SlipstreamError as error:
        print(error, file=sys.stderr)  # noqa: T201 - what is looked for
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
