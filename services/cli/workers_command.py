"""`slipstream workers` and `slipstream drain`: who works for a running stack, and who leaves it."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from slipstream.services.cli.connection import NatsUrl, connected
from slipstream.services.cli.console import quiet_logs
from slipstream.shared.nats_config import DEFAULT_NATS_URL

if TYPE_CHECKING:
    from slipstream.shared.messages.reports import WorkerReport

_COLUMNS = "{:<20}{:<10}{:<18}{:>7}{:>7}  {}"


def workers(
    nats: NatsUrl = DEFAULT_NATS_URL,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print them as a JSON list.")] = False,
) -> None:
    """
    List the workers of a running stack.

    For example:

      slipstream workers

      slipstream workers --json | jq '.[] | select(.role == "decode") | .worker_id'
    """
    quiet_logs()
    found, leader = asyncio.run(_find(nats))
    found.sort(key=lambda report: (report.role, report.worker_id))
    if json:
        typer.echo(as_json(found))
    else:
        _print_table(found)
        if leader is not None:
            typer.echo(_COLUMNS.format(leader, "scheduler", "-", "-", "-", "active"))


def as_json(reports: "Sequence[WorkerReport]") -> str:
    """Return what --json prints."""
    fields = [
        {
            "worker_id": each.worker_id,
            "role": each.role,
            "host_id": each.host_id,
            "num_seats": each.num_seats,
            "num_held": len(each.held),
            "is_draining": each.is_draining,
        }
        for each in reports
    ]
    return msgspec.json.encode(fields).decode()


def _print_table(found: "Sequence[WorkerReport]") -> None:
    typer.echo(_COLUMNS.format("worker", "role", "host", "seats", "held", "state"))
    for each in found:
        state = "draining" if each.is_draining else "ready"
        host, num_held = each.host_id or "-", len(each.held)
        typer.echo(
            _COLUMNS.format(each.worker_id, each.role, host, each.num_seats, num_held, state)
        )


def drain(
    worker: Annotated[str, typer.Argument(help="Its id, as `slipstream workers` lists it.")],
    *,
    wait: Annotated[
        float, typer.Option(min=0, max=86_400, help="Seconds to wait for what it still holds.")
    ] = 60.0,
    nats: NatsUrl = DEFAULT_NATS_URL,
) -> None:
    """
    Have a worker take no more work, finish what it holds, and end. Exits with 1 if it still runs.

    For example:

      slipstream drain decode-k3x9qp2m --wait 300
    """
    quiet_logs()
    num_held = asyncio.run(_drain(nats, worker, wait))
    if num_held is None:
        typer.echo(f"{worker} is gone")
        return
    typer.echo(f"{worker} takes no more, and still holds {num_held} requests")
    raise typer.Exit(1)


async def _find(nats_url: str) -> "tuple[list[WorkerReport], str | None]":
    from slipstream.services.cli.workers import find_active, find_workers  # noqa: PLC0415 - keeps --help quick

    async with connected(nats_url, "workers", is_operator=True) as bus:
        return await find_workers(bus), await find_active(bus)


async def _drain(nats_url: str, worker_id: str, wait_s: float) -> int | None:
    from slipstream.services.cli.workers import drain as drain_worker  # noqa: PLC0415 - keeps --help quick

    async with connected(nats_url, "drain", is_operator=True) as bus:
        return await drain_worker(bus, worker_id, wait_s)
