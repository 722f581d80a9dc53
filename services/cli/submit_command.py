"""`slipstream submit`: leave a request with the server."""

import asyncio
from typing import Annotated

import msgspec
import typer

from slipstream.services.cli.connection import NatsUrl, connected
from slipstream.services.cli.console import quiet_logs
from slipstream.services.cli.option_groups import with_options
from slipstream.services.cli.prompt_options import RequestOptions
from slipstream.shared.messages.generate import GenerateRequest
from slipstream.shared.nats_config import DEFAULT_NATS_URL


@with_options
def submit(
    prompt: Annotated[str, typer.Argument(help="What to ask.")],
    *,
    nats: NatsUrl = DEFAULT_NATS_URL,
    request_key: Annotated[
        str | None,
        typer.Option(help="A name of your own: submitted again, it has one result."),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose keys these are.")] = None,
    ask: RequestOptions = RequestOptions(),  # noqa: B008 - frozen
) -> None:
    """
    Store a request, and print the key of its result. It is answered when there is room for it.

    For example:

      slipstream result --wait 60 $(slipstream submit "Name three rivers")

      slipstream submit --request-key order-17 "Write a poem about order 17"
    """
    quiet_logs()
    request = msgspec.structs.replace(
        ask.plain_request(prompt), request_key=request_key, tenant=tenant
    )
    typer.echo(asyncio.run(_key(nats, request)))


async def _key(nats_url: str, request: GenerateRequest) -> str:
    from slipstream.shared.bus.durable import StorageError  # noqa: PLC0415 - keeps --help quick
    from slipstream.shared.client import submissions  # noqa: PLC0415 - keeps --help quick

    try:
        async with connected(nats_url, "submit") as bus:
            return await submissions.submit(bus.durable(), request)
    except StorageError as error:
        raise StorageError(
            f"{error} at {nats_url}; submissions are stored once a scheduler has run there"
        ) from error
