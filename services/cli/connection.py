"""How a command reaches a running stack: the option that says where, and a connection to it."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.shared.errors import ConfigurationError, NoRespondersError, SlipstreamError

if TYPE_CHECKING:
    from slipstream.shared.bus.nats_access import NatsAccess
    from slipstream.shared.bus.nats_bus import NatsBus

_CONNECT_S = 3.0

NatsUrl = Annotated[
    str, typer.Option(envvar="SLIPSTREAM_NATS_URL", help="NATS server of the stack.")
]


@contextlib.asynccontextmanager
async def connected(
    nats_url: str, command: str, *, is_operator: bool = False
) -> AsyncIterator["NatsBus"]:
    """
    Connect in the name of a command, and close.

    Raises ConfigurationError where nobody is, and for what only the operator may do.
    """
    from slipstream.shared.bus.nats_bus import NatsBus  # noqa: PLC0415 - keeps --help quick

    access = access_to(nats_url, os.environ, is_operator=is_operator)
    name = f"slipstream-{command}"
    bus = await NatsBus.connect(nats_url, name, access, connect_timeout_s=_CONNECT_S)
    try:
        with _permitted(bus, command, is_operator=is_operator):
            yield bus
    finally:
        await bus.close()


def access_to(
    nats_url: str, environment: Mapping[str, str], *, is_operator: bool = False
) -> "NatsAccess":
    """
    Return the key and the certificates that the environment names.

    Without a key an operator's command takes that of the stack which this user runs at the URL;
    others come as guests. Raises ConfigurationError.
    """
    from slipstream.shared.bus.nats_access import NatsAccess  # noqa: PLC0415 - keeps --help quick

    def path(name: str) -> Path | None:
        return Path(text) if (text := environment.get(f"SLIPSTREAM_NATS_{name}")) else None

    if is_operator and path("NKEY") is None:
        from slipstream.services.cli.nats_server import own_keys  # noqa: PLC0415 - keeps --help quick

        keys = own_keys(nats_url)
        if keys is not None:
            return keys.access("operator")
    return NatsAccess(nkey=path("NKEY"), ca=path("CA"), cert=path("CERT"), key=path("KEY"))


def operator_access(nats_url: str) -> "NatsAccess":
    """Return what a measurement of a stack connects with. Raises ConfigurationError."""
    return access_to(nats_url, os.environ, is_operator=True)


@contextlib.contextmanager
def _permitted(bus: "NatsBus", command: str, *, is_operator: bool) -> Iterator[None]:
    """Where the server denied something, say so in place of what came of it."""
    failure: SlipstreamError | None = None
    try:
        yield
    except SlipstreamError as error:
        if not bus.refusals.subjects:
            raise
        failure = error
    # What only the operator sees is not half shown: nobody could tell what is missing.
    if failure is not None or (is_operator and bus.refusals.subjects):
        subject = next(iter(bus.refusals.subjects))
        raise ConfigurationError(
            f"NATS does not let {bus.role or 'a guest'} use {subject}: `slipstream {command}` "
            "needs another key, in SLIPSTREAM_NATS_NKEY=FILE (docs/operations.md, Keys)"
        ) from failure


@contextlib.contextmanager
def answered(nats_url: str) -> Iterator[None]:
    """Say what to do where a request met nobody. Raises ConfigurationError."""
    try:
        yield
    except NoRespondersError as error:
        raise ConfigurationError(
            f"{error} at {nats_url}: no scheduler runs there; start one with `slipstream up`"
        ) from error
