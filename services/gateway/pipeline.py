"""The live view of the whole pipeline: reports and answers in, updates out. Pure."""

from collections.abc import Mapping
from typing import Any

from slipstream.services.gateway.pipeline_requests import Requests
from slipstream.services.gateway.pipeline_services import Services
from slipstream.services.gateway.pipeline_views import Update
from slipstream.shared.messages.common import Role
from slipstream.shared.messages.reports import WorkerReport

_FROM_THE_BEGINNING = -1


class Pipeline:
    """Bounded: so many services, so many requests, whatever is going on."""

    def __init__(self) -> None:
        self.services = Services()
        self.requests = Requests(self.services.generated)

    @property
    def version(self) -> int:
        """Grows with each change of a request."""
        return self.requests.version

    def report(self, report: WorkerReport, now_s: float) -> None:
        """Take in a worker's report."""
        self.services.report(report, now_s)
        if report.role in ("prefill", "decode"):
            self.requests.report(report, now_s)

    # Any: see tally_meter.Tallies.
    def figures(self, id_: str, role: Role, figures: Mapping[str, Any], now_s: float) -> None:
        """Take in what a service counts and shows."""
        self.services.figures(id_, role, figures, now_s)

    def update(self, since: int | None, num_open: int, now_s: float) -> Update:
        """Return all of it, or what is new since a version."""
        requests = self.requests.views(_FROM_THE_BEGINNING if since is None else since, now_s)
        return Update(
            is_first=since is None,
            now_ms=round(now_s * 1000, 1),
            num_open=num_open,
            services=self.services.views(now_s),
            requests=requests,
        )
