"""`slipstream run`: start everything, answer one prompt, show what happened, stop everything."""

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.services.cli.console import progress, quiet_logs
from slipstream.services.cli.option_groups import with_options
from slipstream.services.cli.prompt_options import DEFAULT_PROMPT, PromptOptions
from slipstream.services.cli.stack_options import StackOptions
from slipstream.services.cli.up_command import metrics_lines
from slipstream.shared.errors import SlipstreamError

if TYPE_CHECKING:
    from slipstream.services.cli.interruption import Interruption
    from slipstream.services.cli.running_stack import RunningStack
    from slipstream.services.cli.stack import StackSettings
    from slipstream.shared.client.answers import Answer
    from slipstream.shared.telemetry.receiver import TraceReceiver

_ROOT_S = 3.0  # what the root's span may take to arrive
_LATE_SPANS_S = 1.0
_LATE_SPANS_POLL_S = 0.15
_NUM_LOG_LINES = 8


@with_options
def run(
    prompt: Annotated[str, typer.Argument(help="What to ask.")] = DEFAULT_PROMPT,
    *,
    # A first answer should be the model's best, the same each time, and show the whole pipeline.
    ask: PromptOptions = PromptOptions(temperature=0.0),  # noqa: B008 - frozen
    stack: StackOptions = StackOptions(route="remote"),  # noqa: B008 - frozen
) -> None:
    """
    Start NATS and all services, answer one prompt, and stop everything.

    For example:

      slipstream run

      slipstream run "Write a haiku about rivers" --max-tokens 40

      slipstream run --json "What is the capital of France?" | jq .text
    """
    _run(stack.prepare(is_log_json=True), prompt, ask)


def _run(settings: "StackSettings", prompt: str, ask: PromptOptions) -> None:
    # Imported here: what `slipstream --help` does not need.
    from slipstream.services.cli.answer_printer import as_json, summary  # noqa: PLC0415 - keeps --help quick
    from slipstream.services.cli.interruption import Interruption  # noqa: PLC0415 - keeps --help quick

    quiet_logs()
    interruption = Interruption()
    found = asyncio.run(interruption.guard(_answer(settings, prompt, ask, interruption)))
    if found is None:
        raise typer.Exit(128 + (interruption.number or 0))
    answer, services = found
    typer.echo(as_json(answer, services) if ask.json else f"\n{summary(answer, services)}")
    if interruption.number is not None:
        raise typer.Exit(128 + interruption.number)


async def _answer(
    settings: "StackSettings", prompt: str, ask: PromptOptions, interruption: "Interruption"
) -> "tuple[Answer, list[str]]":
    # Imported here: as in `_run`.
    from slipstream.services.cli.log_file import LogFile  # noqa: PLC0415 - keeps --help quick
    from slipstream.services.cli.running_stack import StackStart, running_stack  # noqa: PLC0415 - keeps --help quick
    from slipstream.services.cli.trace_settings import (  # noqa: PLC0415 - keeps --help quick
        forwarding_endpoint,
        tracing_to,
    )
    from slipstream.shared.telemetry.receiver import TraceReceiver  # noqa: PLC0415 - keeps --help quick

    log = LogFile()
    with TraceReceiver(forward_to=forwarding_endpoint(os.environ)) as receiver:
        start = StackStart(
            settings=settings,
            environment=tracing_to(receiver.traces_endpoint, os.environ),
            open_log=log.open,
        )
        async with running_stack(start, interruption) as stack:
            for line in metrics_lines(stack.metrics_urls):
                progress(line.strip())
            try:
                answer = await _ask(stack, prompt, ask)
            except SlipstreamError:
                for line in log.problems(_NUM_LOG_LINES):
                    progress(line)
                raise
            services = await _services_of(receiver, answer.trace_id)
            progress("stopping")
    return answer, services


async def _ask(stack: "RunningStack", prompt: str, ask: PromptOptions) -> "Answer":
    # Imported here: as in `_run`.
    from slipstream.services.cli.answer_printer import fetch  # noqa: PLC0415 - keeps --help quick
    from slipstream.shared.bus.nats_bus import NatsBus  # noqa: PLC0415 - keeps --help quick

    bus = await NatsBus.connect(stack.nats_url, "slipstream-run", stack.access)
    try:
        return await fetch(bus, prompt, ask)
    finally:
        await bus.close()


async def _services_of(receiver: "TraceReceiver", trace_id: str | None) -> list[str]:
    """Return who took part, once the spans have come: every process exports on its own time."""
    if trace_id is None:
        return []
    await asyncio.to_thread(receiver.wait_for_root, trace_id, _ROOT_S)
    num_spans = -1
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LATE_SPANS_S):
            while num_spans != len(receiver.spans(trace_id)):
                num_spans = len(receiver.spans(trace_id))
                await asyncio.sleep(_LATE_SPANS_POLL_S)
    return sorted(name.removeprefix("slipstream-") for name in receiver.services(trace_id))
