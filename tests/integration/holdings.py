"""What each service of a stack still has of requests: nothing, when all are answered."""

from collections.abc import Mapping, Sized
from typing import Any

from .service_stack import ServiceStack

Holdings = Mapping[str, Sized | int]


def held(stack: ServiceStack) -> dict[str, Sized | int]:
    """Return what is not empty, by its name."""
    found: dict[str, Sized | int] = {**_of_scheduler(stack), **_of_manager(stack)}
    for position, process in enumerate(stack.processes):
        of_role = {"prefill": _of_prefill, "decode": _of_decode}.get(process.role)
        if of_role is not None:
            parts = of_role(process.service._parts)
            found |= {f"{process.role}-{position}.{name}": each for name, each in parts.items()}
    for process in stack.living("draft"):
        found["draft.sequences"] = process.service._desk.num_sequences
    return {name: each for name, each in found.items() if each}


def _of_scheduler(stack: ServiceStack) -> Holdings:
    front, desk = stack.one("scheduler")._front, stack.desk
    groups = [each.group for each in front._choices._followed.values()]
    return {
        "records": desk.records,
        "waiting": len(desk.load.queue) + desk.load.queue.num_bytes,
        "desk tasks": desk._errands._tasks,
        "admitting": front._num_admitting + front._num_bytes_admitting,
        # What is closed may be waited for in vain, and is forgotten some seconds later.
        "groups": [each for each in groups if len(each.closed) < each.num_choices],
        "seats": desk._fleet._assigned,
    }


def _of_manager(stack: ServiceStack) -> Holdings:
    book = stack.one("kv").host.book
    return {
        "leases": book.table.leases,
        "attempts": book.table.by_attempt,
        "quarantines": book.table.quarantines,
        "grants": [block_id for granted in book.grants._by_holder.values() for block_id in granted],
    }


def _of_prefill(parts: Any) -> Holdings:  # Any: tests look at what the services' types hide
    jobs = parts.jobs
    return {
        "tasks": jobs._tasks,
        "sequences": jobs._sequences,
        "cancelled": jobs._cancelled,
        "reported": jobs._book.num_held,
        # What was handed over is dropped at the next renewal.
        "leases": [e for e in parts.host.keeper._held.values() if e.given_at is None],
    }


def _of_decode(parts: Any) -> Holdings:  # Any: as above
    jobs, steps, publisher = parts.jobs, parts.steps, parts.publisher
    return {
        "tasks": jobs._tasks,
        "sequences": jobs._sequences,
        "publishing": jobs._publishing,
        "reported": jobs._book.num_held,
        "leases": parts.host.keeper._held,
        "batch": steps._sequences,
        "preempted": steps._preempted,
        "releasing": steps._num_releasing,
        "blocks": parts.grants._blocks + parts.grants._returned,
        "drafts": parts.draft_client._num_told if parts.draft_client else parts.drafts._indexes,
        "streams": publisher._running,
        "misses": publisher._misses,
        "sent": publisher._last_sent,
        "probed": publisher._last_probe,
    }
