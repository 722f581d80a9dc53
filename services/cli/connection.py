"""How a command reaches a running stack: the option that says where, and a connection to it."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.shared.errors import ConfigurationError, NoRespondersError

if TYPE_CHECKING:
    from slipstream.shared.bus.nats_bus import NatsBus

_CONNECT_S = 3.0

NatsUrl = Annotated[
    str, typer.Option(envvar="SLIPSTREAM_NATS_URL", help="NATS server of the stack.")
]


@contextlib.asynccontextmanager
async def connected(nats_url: str, command: str) -> AsyncIterator["NatsBus"]:
    """Connect in the name of a command, and close. Raises ConfigurationError where nobody is."""
    from slipstream.shared.bus.nats_bus import NatsBus  # noqa: PLC0415 - keeps --help quick

    bus = await NatsBus.connect(nats_url, f"slipstream-{command}", connect_timeout_s=_CONNECT_S)
    try:
        yield bus
    finally:
        await bus.close()


@contextlib.contextmanager
def answered(nats_url: str) -> Iterator[None]:
    """Say what to do where a request met nobody. Raises ConfigurationError."""
    try:
        yield
    except NoRespondersError as error:
        raise ConfigurationError(
            f"{error} at {nats_url}: no scheduler runs there; start one with `slipstream up`"
        ) from error
