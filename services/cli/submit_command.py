"""`slipstream submit`: leave a request with the server."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.services.cli.console import quiet_logs
from slipstream.services.cli.option_groups import with_options
from slipstream.services.cli.prompt_options import RequestOptions
from slipstream.shared.config import DEFAULT_NATS_URL

if TYPE_CHECKING:
    from slipstream.shared.messages.generate import GenerateRequest

_CONNECT_S = 3.0


@with_options
def submit(
    prompt: Annotated[str, typer.Argument(help="What to ask.")],
    *,
    nats: Annotated[
        str, typer.Option(envvar="SLIPSTREAM_NATS_URL", help="NATS server of the stack.")
    ] = DEFAULT_NATS_URL,
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
    # Imported here: what `slipstream --help` does not need.
    import msgspec  # noqa: PLC0415

    quiet_logs()
    request = msgspec.structs.replace(
        ask.plain_request(prompt), request_key=request_key, tenant=tenant
    )
    typer.echo(asyncio.run(_key(nats, request)))


async def _key(nats_url: str, request: "GenerateRequest") -> str:
    # Imported here: as in `submit`.
    from slipstream.services.cli import submission_client  # noqa: PLC0415
    from slipstream.shared.bus.durable import StorageError  # noqa: PLC0415
    from slipstream.shared.bus.nats_bus import NatsBus  # noqa: PLC0415

    bus = await NatsBus.connect(nats_url, "slipstream-submit", connect_timeout_s=_CONNECT_S)
    try:
        return await submission_client.submit(bus.durable(), request)
    except StorageError as error:
        raise StorageError(
            f"{error} at {nats_url}; submissions are stored once a scheduler has run there"
        ) from error
    finally:
        await bus.close()
