"""Ask a stack's processes for their counters at both ends of a while."""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slipstream.services.cli import profile_flame as flame
from slipstream.services.cli.connection import operator_access
from slipstream.services.cli.profile_child import (
    CommandFailedError,
    stacks_of,
    started_command,
)
from slipstream.services.cli.profile_options import ProfileOptions
from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.client.counters import (
    ProcessCounters,
    ProcessSpan,
    ask_counters,
    spans_between,
)
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import WorkerId

_LOOK_S = 0.5  # between two looks at a command's stacks, which end without a word


class NobodyAnswersError(SlipstreamError):
    """There is a server, but nothing of ours that counts."""

    code = "nobody_answers"

    def __init__(self, url: str) -> None:
        super().__init__(
            f"no service answers on {url}: start a stack with slipstream up, or name its server "
            "with --nats"
        )


@dataclass
class Look:
    """At one stack, once."""

    bus: Bus
    options: ProfileOptions
    url: str

    async def spans(self) -> list[ProcessSpan]:
        """Return what was counted in the time asked for. Raises NobodyAnswersError, FlameError."""
        before = await ask_counters(self.bus)
        if not before:
            raise NobodyAnswersError(self.url)
        async with asyncio.TaskGroup() as group:
            if self.options.flame_file is not None:
                group.create_task(_draw(self.options, before.values()))
            await asyncio.sleep(self.options.seconds)
            after = await ask_counters(self.bus, expected=list(before))
        return spans_between(before, after)


@dataclass
class CommandLook:
    """At the stacks of a command: each as long as it is there."""

    options: ProfileOptions
    first: dict[WorkerId, ProcessCounters] = field(default_factory=dict)
    last: dict[WorkerId, ProcessCounters] = field(default_factory=dict)
    drawing: "asyncio.Task[None] | None" = None
    _buses: dict[str, NatsBus] = field(default_factory=dict)

    async def look(self, urls: Sequence[str]) -> None:
        """Ask all that are up now."""
        for url in urls:
            # A server that has just gone, or isn't there yet.
            with contextlib.suppress(SlipstreamError, OSError):
                if url not in self._buses:
                    self._buses[url] = await NatsBus.connect(
                        url, "profile", operator_access(url), connect_timeout_s=1.0
                    )
                known = [*self.last] if len(urls) == 1 else []
                found = await ask_counters(self._buses[url], expected=known)
                for worker_id, counters in found.items():
                    self.first.setdefault(worker_id, counters)
                    self.last[worker_id] = counters
        is_decoding = any(each.role == "decode" for each in self.last.values())
        if self.options.flame_file is not None and self.drawing is None and is_decoding:
            self.drawing = asyncio.create_task(_draw(self.options, self.last.values()))

    async def close(self) -> None:
        """Hang up."""
        for bus in self._buses.values():
            with contextlib.suppress(SlipstreamError, OSError):
                await bus.close()


async def look_at_command(command: Sequence[str], options: ProfileOptions) -> list[ProcessSpan]:
    """Run a command and return what its stacks counted. Raises CommandFailedError."""
    look = CommandLook(options)
    try:
        async with started_command(command) as process:
            while process.returncode is None:
                await look.look(stacks_of(process.pid))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await process.wait()
            if look.drawing is not None:
                await look.drawing
    finally:
        await look.close()
    if process.returncode != 0:
        raise CommandFailedError(f"the command ended with status {process.returncode}")
    spans = [span for span in spans_between(look.first, look.last) if span.seconds > 0]
    if not spans:
        raise CommandFailedError("the command started no stack, or none that lasted a second")
    return spans


async def _draw(options: ProfileOptions, processes: Iterable[ProcessCounters]) -> None:
    assert options.flame_file is not None, "asked for"
    program = flame.find_program(options.flame_file)
    pid = flame.process_to_draw(processes)
    await flame.draw(program, pid, options.seconds, options.flame_file)
