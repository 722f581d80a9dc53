"""`slipstream top`: what a running stack does, as it does it."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.services.cli.connection import NatsUrl, connected
from slipstream.services.cli.console import quiet_logs
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.nats_config import DEFAULT_NATS_URL

if TYPE_CHECKING:
    from slipstream.services.cli.top_snapshot import Snapshot

_WIDTH = 110  # of what is not shown on a terminal


def top(
    *,
    nats: NatsUrl = DEFAULT_NATS_URL,
    interval: Annotated[
        float, typer.Option(min=0.2, max=60, help="Seconds between two looks.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and end.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print snapshots as JSON, one a line.")
    ] = False,
) -> None:
    """
    Watch a running stack: workers, queue, speed, KV blocks, drafts, cache. q or Ctrl-C leaves.

    Without a terminal it prints a line each interval.

    For example:

      slipstream top

      slipstream top --once --json | jq .tokens_per_s
    """
    from slipstream.services.cli.interruption import Interruption  # noqa: PLC0415 - keeps --help quick

    quiet_logs()
    interruption = Interruption()
    asyncio.run(interruption.guard(_show(nats, interval, is_once=once, is_json=json)))
    if interruption.number not in (None, signal.SIGINT):
        raise typer.Exit(128 + (interruption.number or 0))


async def _show(nats_url: str, interval_s: float, *, is_once: bool, is_json: bool) -> None:
    from slipstream.services.cli.top_watch import TopWatch  # noqa: PLC0415 - keeps --help quick

    async with connected(nats_url, "top", is_operator=True) as bus:
        watch = TopWatch(bus)
        await watch.start()
        snapshots = watch.snapshots(interval_s)
        async with contextlib.aclosing(snapshots):
            if is_once:
                _print(_found(await anext(snapshots), nats_url), nats_url, is_json=is_json)
            elif is_json or not sys.stdout.isatty():
                async for snapshot in snapshots:
                    _print_line(snapshot, is_json=is_json)
            else:
                await _live(snapshots, nats_url)


def _found(snapshot: "Snapshot", nats_url: str) -> "Snapshot":
    if not snapshot.services and not snapshot.workers:
        raise ConfigurationError(
            f"no service answers at {nats_url}; start a stack with `slipstream up`"
        )
    return snapshot


def _print(snapshot: "Snapshot", nats_url: str, *, is_json: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 - keeps --help quick

    from slipstream.services.cli.top_view import view  # noqa: PLC0415 - keeps --help quick

    if is_json:
        _print_line(snapshot, is_json=True)
        return
    width = None if sys.stdout.isatty() else _WIDTH
    Console(width=width).print(view(snapshot, nats_url))


def _print_line(snapshot: "Snapshot", *, is_json: bool) -> None:
    import msgspec  # noqa: PLC0415 - keeps --help quick

    from slipstream.services.cli.top_view import line_of  # noqa: PLC0415 - keeps --help quick

    typer.echo(msgspec.json.encode(snapshot).decode() if is_json else line_of(snapshot))
    sys.stdout.flush()


async def _live(snapshots: "AsyncIterator[Snapshot]", nats_url: str) -> None:
    from rich.live import Live  # noqa: PLC0415 - keeps --help quick

    from slipstream.services.cli.keys import key_pressed  # noqa: PLC0415 - keeps --help quick
    from slipstream.services.cli.top_snapshot import Snapshot  # noqa: PLC0415 - keeps --help quick
    from slipstream.services.cli.top_view import view  # noqa: PLC0415 - keeps --help quick

    empty = view(Snapshot(services={}), nats_url)
    with Live(empty, screen=True, auto_refresh=False) as live, key_pressed("qQ") as pressed:

        async def follow() -> None:
            async for snapshot in snapshots:
                live.update(view(snapshot, nats_url), refresh=True)

        following = asyncio.create_task(follow())
        leaving = asyncio.create_task(pressed.wait())
        try:
            await asyncio.wait({following, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        finally:
            for task in (following, leaving):
                task.cancel()
            await asyncio.gather(following, leaving, return_exceptions=True)
