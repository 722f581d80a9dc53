"""What requests will cost, learned from those that ended. Pure."""

from collections import OrderedDict
from dataclasses import dataclass, replace

_LEARNED = 0.1  # the part of each new length in the average
_MAX_NUM_GROUPS = 4096
_FIRST_OUTPUT_TOKENS = 64.0  # of an answer, while none has ended


@dataclass(frozen=True, slots=True)
class Rates:
    """What an engine does in a second. The defaults are a small model's on two cores."""

    prompt_tokens_per_s: float = 1000.0
    output_tokens_per_s: float = 100.0  # of one stream among others

    def with_stream(self, tokens_per_s: float) -> "Rates":
        """Return the rates after a stream of so many tokens a second was seen."""
        known = self.output_tokens_per_s
        return replace(self, output_tokens_per_s=known + _LEARNED * (tokens_per_s - known))


class OutputLengths:
    """
    How long answers get: a moving average by tenant and class, and one of all.

    `max_tokens` is only a bound: most answers end long before.
    """

    def __init__(self) -> None:
        self._of_all = _FIRST_OUTPUT_TOKENS
        self._of_group: OrderedDict[tuple[str, str], float] = OrderedDict()

    def expect(self, tenant: str, latency_class: str, max_tokens: int) -> int:
        """Return how many tokens an answer will probably have."""
        expected = self._of_group.get((tenant, latency_class), self._of_all)
        return max(1, min(max_tokens, round(expected)))

    def learn(self, tenant: str, latency_class: str, num_tokens: int) -> None:
        """Take in how long an answer was."""
        self._of_all += _LEARNED * (num_tokens - self._of_all)
        group = (tenant, latency_class)
        known = self._of_group.pop(group, float(num_tokens))
        self._of_group[group] = known + _LEARNED * (num_tokens - known)
        while len(self._of_group) > _MAX_NUM_GROUPS:
            self._of_group.popitem(last=False)


def work_s(num_uncached_tokens: int, num_output_tokens: int, rates: Rates) -> float:
    """Return the seconds of an engine that a request takes."""
    return (
        num_uncached_tokens / rates.prompt_tokens_per_s
        + num_output_tokens / rates.output_tokens_per_s
    )
