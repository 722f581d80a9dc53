"""A process with the life of a service and none of its work. Usage: ROLE [stubborn | broken]."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from slipstream.shared.ids import WorkerId, new_worker_id
from slipstream.shared.lifecycle import end_with_parent, run_service
from slipstream.shared.messages.common import Role


class StandIn:
    """Is ready at once and waits for its end."""

    def __init__(self, role: Role) -> None:
        self.role: Role = role
        self.worker_id: WorkerId = new_worker_id(role)
        self.metrics_url: str | None = None
        self.http_url: str | None = None
        self.detail = ""

    async def start(self) -> None:
        """Leave a file where the KV manager leaves its arena."""
        if self.role == "kv":
            (Path(os.environ["SLIPSTREAM_ARENA_DIR"]) / "arena.1").write_bytes(bytes(4096))

    async def wait(self) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Let go of nothing."""


def main(role: Role, manner: str) -> int:
    """Run until the end, or be a case for the supervisor."""
    end_with_parent(int(os.environ["SLIPSTREAM_PARENT_PID"]))
    if manner == "broken":
        print("no such model: nowhere", file=sys.stderr)  # noqa: T201 - the log line that is looked for
        return 1
    if manner == "stubborn":
        # Blocked, not handled: what runs in C sees no signal either.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    return run_service(lambda: StandIn(role), Path(os.environ["SLIPSTREAM_STATUS_FILE"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))  # type: ignore[arg-type] # the tests pass a role
