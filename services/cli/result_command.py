"""`slipstream result`: fetch the answer of what was submitted."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.services.cli.connection import NatsUrl, connected
from slipstream.services.cli.console import quiet_logs
from slipstream.services.cli.exit_codes import NOT_YET
from slipstream.shared.nats_config import DEFAULT_NATS_URL

if TYPE_CHECKING:
    from slipstream.shared.messages.generate import Completion


def result(
    key: Annotated[str, typer.Argument(help="What `slipstream submit` printed.")],
    *,
    nats: NatsUrl = DEFAULT_NATS_URL,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for it.")] = 0.0,
    json: Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON.")] = False,
) -> None:
    """
    Print the answer to a submitted request; exit with 3 while there is none, with 1 if it failed.

    For example:

      slipstream result seq-1796052861954 --wait 60
    """
    from slipstream.shared.messages.codec import encode  # noqa: PLC0415 - keeps --help quick

    quiet_logs()
    found = asyncio.run(_fetched(nats, key, wait))
    if found is None:
        typer.echo(f"slipstream: {key} has no result yet", err=True)
        raise typer.Exit(NOT_YET)
    if json:
        typer.echo(encode(found, "json").decode())
    else:
        typer.echo("\n".join(choice.text for choice in found.choices))


async def _fetched(nats_url: str, key: str, wait_s: float) -> "Completion | None":
    from slipstream.shared.client import submissions  # noqa: PLC0415 - keeps --help quick

    async with connected(nats_url, "result") as bus:
        return await submissions.fetch(bus.durable(), key, wait_s)
