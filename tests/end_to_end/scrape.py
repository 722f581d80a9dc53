"""What Prometheus would read of a stack, by the library's own parser."""

import asyncio
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from . import stack

_ANSWER_S = 5.0


@dataclass(frozen=True)
class Scrape:
    """All samples of all services, read one after another."""

    samples: dict[str, list[Sample]]  # by the service's name

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over all services that show it."""
        return sum(each.value for each in self._of(self.samples, name, labels))

    def by(self, label: str, name: str) -> dict[str, float]:
        """Return what is not zero of a metric, by one of its labels."""
        found: dict[str, float] = {}
        for each in self._of(self.samples, name, {}):
            if each.value:
                found[each.labels[label]] = found.get(each.labels[label], 0) + each.value
        return found

    def one(self, service: str, name: str, **labels: str) -> float:
        """Return a metric of one service."""
        (sample,) = self._of([service], name, labels)
        return sample.value

    def _of(self, services: Iterable[str], name: str, labels: dict[str, str]) -> list[Sample]:
        return [
            sample
            for service in services
            for sample in self.samples[service]
            if sample.name == f"slipstream_{name}" and labels.items() <= sample.labels.items()
        ]


async def scrape(running: stack.Stack, services: Iterable[str]) -> Scrape:
    """Read the metrics of these services."""
    urls = {name: url_of(running, name) for name in services}
    return Scrape({name: await asyncio.to_thread(_read, url) for name, url in urls.items()})


def url_of(running: stack.Stack, service: str) -> str:
    """Return where a service's metrics are, as its status says."""
    status = running.status(service)
    assert status is not None, f"{service} is not up"
    assert status.metrics_url is not None, f"{service} serves no metrics"
    return status.metrics_url


def _read(url: str) -> list[Sample]:
    with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:
        text = answer.read().decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]
