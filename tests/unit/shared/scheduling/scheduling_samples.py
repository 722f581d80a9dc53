"""Requests, reports and workers as the tests of scheduling need them."""

from typing import Any

from slipstream.shared.ids import HostId, RequestId, WorkerId
from slipstream.shared.messages.common import Role
from slipstream.shared.messages.reports import WorkerReport
from slipstream.shared.scheduling.fleet import Fleet
from slipstream.shared.scheduling.queue import WaitingQueue
from slipstream.shared.scheduling.waiting import WaitingRequest

HOST = HostId("h")


def waiting(name: str = "r", arrived_at: float = 0.0, **fields: Any) -> WaitingRequest:
    return WaitingRequest(
        **{
            "request_id": RequestId(name),
            "arrived_at": arrived_at,
            "num_prompt_tokens": 100,
            "num_bytes": 10,
            **fields,
        }
    )


def report(worker_id: str, role: Role = "decode", number: int = 1, **fields: Any) -> WorkerReport:
    values: dict[str, Any] = {
        "worker_id": WorkerId(worker_id),
        "role": role,
        "epoch": 1,
        "number": number,
        "num_seats": 4,
        "num_free_seats": 4,
        "host_id": HOST,
    }
    return WorkerReport(**(values | fields))


def fleet_of(*reports: WorkerReport, window_tokens: int = 1024) -> Fleet:
    fleet = Fleet(window_tokens)
    for each in reports:
        fleet.saw(each, 0.0)
    return fleet


def take_all(queue: WaitingQueue, now: float = 0.0) -> list[str]:
    taken = []
    while (request := queue.first(now)) is not None:
        queue.take(request, now)
        taken.append(str(request.request_id))
    return taken
