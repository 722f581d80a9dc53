"""Requests and samples as the tests of a load need them."""

from slipstream.shared.measure.load.requests import PlannedRequest
from slipstream.shared.measure.load.samples import Sample
from slipstream.shared.messages.common import LatencyClassName
from slipstream.shared.messages.packed import PackedInts


def make_request(
    num_output: int = 3, latency_class: LatencyClassName | None = None, tenant: str | None = None
) -> PlannedRequest:
    return PlannedRequest(PackedInts([1, 2]), num_output, latency_class, tenant)


def make_sample(
    due_s: float,
    *token_times_s: float,
    latency_class: LatencyClassName | None = None,
    error: str | None = None,
) -> Sample:
    """Return a request that was answered with a token at each time, and ended with the last."""
    sample = Sample(make_request(len(token_times_s), latency_class), due_s, due_s + 0.001)
    sample.arrivals = [(at_s, 1) for at_s in token_times_s]
    sample.ended_s = token_times_s[-1] if token_times_s else due_s
    sample.error = error
    return sample
