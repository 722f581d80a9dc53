"""The services as their reports and their answers to discovery show them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipstream.services.gateway.pipeline_rates import Growth, Rate
from slipstream.services.gateway.pipeline_views import ServiceView
from slipstream.shared.messages.common import Role
from slipstream.shared.messages.reports import WorkerReport
from slipstream.shared.telemetry import metric_names
from slipstream.shared.telemetry.tally_meter import number_at

_SILENT_S = 4.0  # reports come three times a second, statistics are asked for once
_MAX_NUM_SERVICES = 64


@dataclass(eq=False)
class _Service:
    id: str
    role: Role
    heard_s: float
    report: WorkerReport | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)  # Any: see tally_meter.Tallies
    tokens: Rate = field(default_factory=Rate)
    drafted: Growth = field(default_factory=Growth)
    accepted: Growth = field(default_factory=Growth)


class Services:
    """All that were heard of late."""

    def __init__(self) -> None:
        self._services: dict[str, _Service] = {}

    def report(self, report: WorkerReport, now_s: float) -> None:
        """Take in what a worker says of itself."""
        service = self._service(report.worker_id, report.role, now_s)
        if service is not None:
            service.report = report

    def generated(self, worker_id: str, num_tokens: int, now_s: float) -> None:
        """Count tokens that a worker has sent."""
        service = self._services.get(worker_id)
        if service is not None:
            service.tokens.add(num_tokens, now_s)

    # Any: see tally_meter.Tallies.
    def figures(self, id_: str, role: Role, figures: Mapping[str, Any], now_s: float) -> None:
        """Take in what a service counts and shows."""
        service = self._service(id_, role, now_s)
        if service is None:
            return
        service.figures = figures
        metric = metric_names.DRAFT_TOKENS.name
        # A draft worker knows what it has offered, a decode worker what came in time.
        drafted = "offered" if role == "draft" else "proposed"
        service.drafted.read(number_at(figures, metric, drafted), now_s)
        service.accepted.read(number_at(figures, metric, "accepted"), now_s)

    def views(self, now_s: float) -> list[ServiceView]:
        """Return all that live, in the order of their names."""
        for id_, service in list(self._services.items()):
            if now_s - service.heard_s > _SILENT_S:
                del self._services[id_]
        return [_view(self._services[id_], now_s) for id_ in sorted(self._services)]

    def _service(self, id_: str, role: Role, now_s: float) -> _Service | None:
        service = self._services.get(id_)
        if service is None:
            if len(self._services) >= _MAX_NUM_SERVICES:
                return None
            service = self._services[id_] = _Service(id_, role, now_s)
        service.heard_s = now_s
        return service


def _view(service: _Service, now_s: float) -> ServiceView:
    report, figures, role = service.report, service.figures, service.role
    requests = metric_names.REQUESTS.name
    num_held = len(report.held) if report is not None else 0
    looked_up = number_at(figures, metric_names.KV_LOOKED_UP_TOKENS.name)
    found = number_at(figures, metric_names.KV_CACHED_TOKENS.name)
    return ServiceView(
        id=service.id,
        role=role,
        is_draining=report is not None and report.is_draining,
        num_running=num_held or _num_running(role, figures),
        num_waiting=int(number_at(figures, requests, role, "waiting")),
        # A draft worker's are no places of requests.
        num_seats=report.num_seats if report is not None and role != "draft" else 0,
        num_free_blocks=report.num_free_blocks if report is not None else 0,
        num_blocks=report.num_blocks if report is not None else 0,
        tokens_per_s=service.tokens.per_s(now_s),
        prompt_tokens_per_s=round(report.prompt_tokens_per_s, 1) if report is not None else 0.0,
        drafted_per_s=service.drafted.per_s,
        accepted_per_s=service.accepted.per_s,
        cache_hits=round(found / looked_up, 4) if looked_up else None,
    )


def _num_running(role: Role, figures: Mapping[str, Any]) -> int:  # Any: see tally_meter.Tallies
    is_told = role == "draft"  # the others' reports list what they hold
    return int(number_at(figures, metric_names.REQUESTS.name, role, "running")) if is_told else 0
