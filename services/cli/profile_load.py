"""A load to look at a stack under: so many requests at any moment."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from slipstream.services.cli.console import progress
from slipstream.services.cli.serve_bench_client import LoadClient
from slipstream.services.cli.serve_bench_options import ServeBenchOptions
from slipstream.services.cli.serve_bench_plan import Level, make_plan
from slipstream.shared.bus.bus import Bus
from slipstream.shared.errors import ConfigurationError

_WARMUP_S = 3.0
_ASK_S = 1.0  # what both looks take
# Of whichever model runs there: every one has so many tokens, and as long a context.
_VOCAB_SIZE, _MAX_CONTEXT = 256, 2048


@dataclass(frozen=True, slots=True)
class LoadShape:
    """Requests at any moment, and their mean lengths."""

    streams: int = 8
    prompt: int = 128
    output: int = 128


def parse_load(text: str) -> LoadShape:
    """Read `streams=8,prompt=128,output=128`, of which parts may be left out."""
    values: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        if name not in ("streams", "prompt", "output") or not number.isdecimal() or not int(number):
            raise ConfigurationError(
                f"--load has {part!r}: write for example streams=8,prompt=128,output=128, each "
                "above 0"
            )
        values[name] = int(number)
    return LoadShape(**values)


@contextlib.asynccontextmanager
async def kept_running(bus: Bus, shape: LoadShape | None, seconds: float) -> AsyncIterator[None]:
    """Keep requests running while a block does, which begins when they all do."""
    if shape is None:
        yield
        return
    options = ServeBenchOptions(
        streams=str(shape.streams),
        prompt=shape.prompt,
        output=shape.output,
        seconds=seconds + _ASK_S,
        warmup=_WARMUP_S,
        drain=0,
    )
    plan = make_plan(options, _VOCAB_SIZE, _MAX_CONTEXT)
    load = plan.load(Level(streams=shape.streams), 0)
    progress(f"looking at a stack under {shape.streams} streams for {seconds:g} s")
    running = asyncio.create_task(LoadClient(bus).run(load, "profile"))
    try:
        await asyncio.sleep(_WARMUP_S)
        yield
        samples = (await running).samples
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    failed = next((each.error for each in samples if each.error is not None), None)
    if failed is not None:
        raise ConfigurationError(f"--load: a request failed ({failed}); take shorter ones or fewer")
