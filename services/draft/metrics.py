"""What a draft worker counts and shows."""

from collections.abc import Callable

from slipstream.shared.messages.draft import DraftTokens
from slipstream.shared.telemetry import metric_names
from slipstream.shared.telemetry.meter import Meter


class DraftMetrics:
    """The tokens that it offers; what comes of them is counted where they are verified."""

    def __init__(self, meter: Meter, num_sequences: Callable[[], int]) -> None:
        self._tokens = meter.counter(metric_names.DRAFT_TOKENS)
        self._tokens.add("offered", amount=0)
        meter.watch(metric_names.REQUESTS, lambda: {("draft", "running"): num_sequences()})

    def offered(self, answer: DraftTokens) -> None:
        """Count the tokens of an answer."""
        num_tokens = sum(len(proposal.token_ids) for proposal in answer.proposals)
        self._tokens.add("offered", amount=num_tokens)
