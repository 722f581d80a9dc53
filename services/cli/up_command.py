"""`slipstream up`: a whole stack on this machine until it is told to stop."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.services.cli.console import progress, quiet_logs
from slipstream.services.cli.option_groups import with_options
from slipstream.services.cli.stack_options import StackOptions
from slipstream.shared.errors import ConfigurationError

if TYPE_CHECKING:
    from slipstream.services.cli.stack import StackSettings

DEFAULT_PORT = 4222
DEFAULT_HTTP_PORT = 8000
DEFAULT_NUM_TRACES = 256
_BODY = '{"prompt": "The capital of France is"}'


@with_options
def up(
    *,
    nats: Annotated[
        str | None,
        typer.Option(
            envvar="SLIPSTREAM_NATS_URL", help="Use this NATS server (default: start one)."
        ),
    ] = None,
    nats_keys: Annotated[
        Path | None,
        typer.Option(
            envvar="SLIPSTREAM_NATS_KEYS",
            help="Keys for it, of `slipstream keys init` (an own server has new ones).",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the server it starts; 0: a free one.")
    ] = DEFAULT_PORT,
    gateway: Annotated[
        int, typer.Option(min=0, max=1, help="Gateways for HTTP: 1, or 0 for none.")
    ] = 1,
    http_port: Annotated[
        int,
        typer.Option(
            envvar="SLIPSTREAM_HTTP_PORT", min=0, max=65535, help="Its port; 0: a free one."
        ),
    ] = DEFAULT_HTTP_PORT,
    traces: Annotated[
        int,
        typer.Option(
            envvar="SLIPSTREAM_TRACES",
            min=0,
            max=100_000,
            help="Traces that it keeps for `slipstream trace`; 0: none, which costs nothing.",
        ),
    ] = DEFAULT_NUM_TRACES,
    scheduler: Annotated[
        int, typer.Option(min=1, max=8, help="Schedulers: one is active, the others stand by.")
    ] = 2,
    stack: StackOptions = StackOptions(),  # noqa: B008 - frozen
) -> None:
    """
    Start NATS and all services on this machine; Ctrl-C stops them.

    For example:

      slipstream up

      slipstream up --prefill 2 --decode 2 --port 0 --http-port 0

      slipstream up --nats nats://127.0.0.1:4222
    """
    # The children write into pipes: they can't see that a person reads along.
    is_log_json = _log_json_unless(is_terminal=sys.stderr.isatty())
    settings = stack.prepare(is_log_json=is_log_json)
    if nats_keys is not None and nats is None:
        raise ConfigurationError("--nats-keys is for the server of --nats URL")
    http = http_port if gateway else None
    settings = replace(settings, http_port=http, num_scheduler=scheduler)
    _run(settings, nats, port, nats_keys, traces)


def _log_json_unless(*, is_terminal: bool) -> bool | None:
    if "SLIPSTREAM_LOG_JSON" in os.environ:
        return None
    return not is_terminal


def _run(
    settings: "StackSettings",
    nats_url: str | None,
    port: int,
    keys_dir: Path | None,
    max_num_traces: int,
) -> None:
    from slipstream.services.cli.interruption import Interruption  # noqa: PLC0415 - keeps --help quick
    from slipstream.services.cli.nats_keys import KeySet  # noqa: PLC0415 - keeps --help quick
    from slipstream.services.cli.running_stack import StackStart, running_stack  # noqa: PLC0415 - keeps --help quick
    from slipstream.services.cli.trace_desk import kept_traces  # noqa: PLC0415 - keeps --help quick

    quiet_logs()
    interruption = Interruption()

    async def serve() -> None:
        with kept_traces(max_num_traces, os.environ) as traces:
            start = StackStart(
                settings=settings,
                environment=traces.environment,
                open_log=lambda _run: forward_line,
                nats_url=nats_url,
                port=port,
                keys=KeySet(keys_dir) if keys_dir is not None else None,
            )
            async with running_stack(start, interruption) as stack, traces.shown(stack):
                ready = describe(
                    stack.nats_url, stack.metrics_urls, stack.http_url, stack.access.nkey
                )
                typer.echo(ready)
                await asyncio.Event().wait()

    asyncio.run(interruption.guard(serve()))
    progress("stopped")


def forward_line(name: str, line: str) -> None:
    """Pass a child's log line on, but for the server's long greeting."""
    if name == "nats" and "[INF]" in line:
        return
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)  # noqa: T201 - this is the console


def describe(
    nats_url: str,
    metrics_urls: Mapping[str, str],
    http_url: str | None = None,
    key: Path | None = None,
) -> str:
    """Return what a person needs to use the stack."""
    from slipstream.shared.bus.subjects import CANCEL, GENERATE, RESUME, SUBMIT  # noqa: PLC0415 - keeps --help quick

    generate = GENERATE.subject()
    return "\n".join(
        [
            f"Slipstream is ready on {nats_url}",
            f"  generate  {generate}",
            f"  submit    {SUBMIT.subject()}",
            f"  cancel    {CANCEL.wildcard}",
            f"  resume    {RESUME.wildcard}",
            *([f"  http      {http_url}/v1"] if http_url else []),
            *([f"  operator  {key}"] if key else []),
            *metrics_lines(metrics_urls),
            "Try:",
            f'  slipstream generate --nats {nats_url} "What is the capital of France?"',
            f"  nats req --server {nats_url} --timeout 60s {generate} '{_BODY}'",
            *([_curl(http_url)] if http_url else []),
            "Ctrl-C stops everything.",
        ]
    )


def _curl(http_url: str) -> str:
    return f"  curl {http_url}/v1/completions -d '{_BODY}'"


def metrics_lines(metrics_urls: Mapping[str, str]) -> list[str]:
    """Return where each service's metrics are."""
    return [f"  metrics   {url} ({name})" for name, url in metrics_urls.items()]
