"""`slipstream dead`: what became of submissions that could not be served, and another try."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from slipstream.services.cli.connection import NatsUrl, connected
from slipstream.services.cli.console import quiet_logs
from slipstream.services.cli.usage import UsageError
from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.nats_config import DEFAULT_NATS_URL

if TYPE_CHECKING:
    from slipstream.services.cli.dead_letters import Dead

_COLUMNS = "{:>8}{:>9}{:>7}  {:<24}{:<38}{}"
_MAX_MESSAGE = 60

app = typer.Typer(
    no_args_is_help=True,
    help="Look at submissions that could not be served, submit them again, or drop them.\n\n"
    "For example: slipstream dead list, slipstream dead requeue 4",
)

Reason = Annotated[
    str | None, typer.Option(help="Only those that ended with this code, say worker_crashed.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Numbers = Annotated[
    list[int] | None, typer.Argument(min=1, help="As `slipstream dead list` shows them.")
]
All = Annotated[bool, typer.Option("--all", help="All of them, or all of one --reason.")]


@app.command("list")
def list_letters(
    *,
    reason: Reason = None,
    limit: Annotated[int, typer.Option(min=1, help="Show so many at most.")] = 100,
    nats: NatsUrl = DEFAULT_NATS_URL,
    json: Json = False,
) -> None:
    """
    List dead letters, the oldest first.

    For example:

      slipstream dead list --reason worker_crashed

      slipstream dead list --json | jq -r '.[].key'
    """
    quiet_logs()
    found = asyncio.run(_found(nats, reason, limit))
    if json:
        typer.echo(msgspec.json.encode([_fields(each) for each in found]).decode())
        return
    typer.echo(_COLUMNS.format("number", "age", "tries", "reason", "key", "message"))
    for each in found:
        letter = each.letter
        typer.echo(
            _COLUMNS.format(
                each.sequence,
                _age(each.age_s),
                letter.num_deliveries,
                letter.reason,
                each.key or "-",
                _one_line(letter.message),
            )
        )


@app.command()
def show(
    number: Annotated[int, typer.Argument(min=1, help="As `slipstream dead list` shows it.")],
    *,
    nats: NatsUrl = DEFAULT_NATS_URL,
    json: Json = False,
) -> None:
    """
    Show one dead letter with its request; exit with 1 if it is gone.

    For example:

      slipstream dead show 4

      slipstream dead show 4 --json | jq .request
    """
    quiet_logs()
    dead = asyncio.run(_one(nats, number))
    if dead is None:
        raise InvalidRequestError("NUMBER", f"letter {number} was requeued or dropped")
    fields = {**_fields(dead), "request": _request(dead)}
    if json:
        typer.echo(msgspec.json.encode(fields).decode())
        return
    for name, value in fields.items():
        shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        typer.echo(f"{name:<15} {shown}")


@app.command()
def requeue(
    numbers: Numbers = None,
    *,
    every: All = False,
    reason: Reason = None,
    nats: NatsUrl = DEFAULT_NATS_URL,
    json: Json = False,
) -> None:
    """
    Submit requests again; print the keys of their results, which are those that they had.

    The failure under the key goes. Repeated it does nothing more: what is gone was requeued before.

    For example:

      slipstream result --wait 60 $(slipstream dead requeue 4)

      slipstream dead requeue --all --reason no_workers
    """
    _check(numbers, every=every, reason=reason)
    quiet_logs()
    keys = asyncio.run(_requeued(nats, numbers, reason))
    typer.echo(msgspec.json.encode(keys).decode() if json else "\n".join(keys), nl=bool(keys))


@app.command()
def drop(
    numbers: Numbers = None,
    *,
    every: All = False,
    reason: Reason = None,
    nats: NatsUrl = DEFAULT_NATS_URL,
) -> None:
    """
    Remove dead letters for good. What their publishers find as the result stays.

    For example:

      slipstream dead drop 4 7

      slipstream dead drop --all --reason invalid_request
    """
    _check(numbers, every=every, reason=reason)
    quiet_logs()
    typer.echo(f"{asyncio.run(_dropped(nats, numbers, reason))} dropped")


def _check(numbers: Sequence[int] | None, *, every: bool, reason: str | None) -> None:
    if bool(numbers) == every:
        raise UsageError("name the numbers of letters, or pass --all", 2)
    if numbers and reason is not None:
        raise UsageError("--reason goes with --all, not with numbers", 2)


async def _found(nats_url: str, reason: str | None, limit: int | None) -> "list[Dead]":
    from slipstream.services.cli.dead_letters import dead_letters  # noqa: PLC0415 - keeps --help quick

    found: list[Dead] = []
    async with connected(nats_url, "dead", is_operator=True) as bus:
        async for each in dead_letters(bus.durable(), reason):
            found.append(each)
            if len(found) == limit:
                break
    return found


async def _one(nats_url: str, number: int) -> "Dead | None":
    from slipstream.services.cli.dead_letters import find  # noqa: PLC0415 - keeps --help quick

    async with connected(nats_url, "dead", is_operator=True) as bus:
        return await find(bus.durable(), number)


async def _requeued(nats_url: str, numbers: Sequence[int] | None, reason: str | None) -> list[str]:
    from slipstream.services.cli import dead_letters  # noqa: PLC0415 - keeps --help quick

    chosen = await _chosen(nats_url, numbers, reason)
    async with connected(nats_url, "dead", is_operator=True) as bus:
        return [await dead_letters.requeue(bus.durable(), each) for each in chosen]


async def _dropped(nats_url: str, numbers: Sequence[int] | None, reason: str | None) -> int:
    chosen = await _chosen(nats_url, numbers, reason)
    async with connected(nats_url, "dead", is_operator=True) as bus:
        for each in chosen:
            await bus.durable().dead_letters.drop(each.sequence)
    return len(chosen)


async def _chosen(nats_url: str, numbers: Sequence[int] | None, reason: str | None) -> "list[Dead]":
    """Return letters; those of numbers that are gone are left out, and said to be."""
    if not numbers:
        return await _found(nats_url, reason, None)
    chosen: list[Dead] = []
    for number in dict.fromkeys(numbers):
        dead = await _one(nats_url, number)
        if dead is None:
            typer.echo(f"slipstream: letter {number} was requeued or dropped before", err=True)
        else:
            chosen.append(dead)
    return chosen


def _fields(dead: "Dead") -> dict[str, object]:
    letter = dead.letter
    return {
        "number": dead.sequence,
        "reason": letter.reason,
        "message": letter.message,
        "key": dead.key,
        "num_deliveries": letter.num_deliveries,
        "age_s": round(dead.age_s, 1),
        "subject": letter.subject,
        "num_bytes": len(letter.payload),
    }


def _request(dead: "Dead") -> object:
    """Return the request as JSON, whatever it was sent as; what can't be read as text."""
    from slipstream.shared.messages.codec import decode_request, encode  # noqa: PLC0415 - keeps --help quick

    try:
        return msgspec.json.decode(encode(decode_request(dead.letter.payload), "json"))
    except (InvalidRequestError, OverflowError, RecursionError):
        return dead.letter.payload.decode(errors="backslashreplace")


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_MESSAGE else f"{line[: _MAX_MESSAGE - 1]}…"


def _age(age_s: float) -> str:
    for unit, seconds in (("d", 86_400), ("h", 3600), ("min", 60)):
        if age_s >= seconds:
            return f"{age_s / seconds:.0f} {unit}"
    return f"{age_s:.0f} s"
