"""How fast something goes, by the last of it. Pure: seconds come in as values."""

from dataclasses import dataclass, field

_KEPT = 0.9  # of what was seen before, at each new piece


@dataclass
class Throughput:
    """A decaying average of tokens a second, by time, so that small pieces weigh little."""

    _num_tokens: float = 0.0
    _seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """The average; 0 while nothing was seen."""
        return self._num_tokens / self._seconds if self._seconds > 0 else 0.0

    def saw(self, num_tokens: int, seconds: float) -> None:
        """Take in a piece of work."""
        if num_tokens > 0 and seconds > 0:
            self._num_tokens = _KEPT * self._num_tokens + num_tokens
            self._seconds = _KEPT * self._seconds + seconds


@dataclass(frozen=True, slots=True)
class Speeds:
    """What a worker measures of itself, for the scheduler."""

    prompts: Throughput = field(default_factory=Throughput)  # rows of prompts computed
    pulls: Throughput = field(default_factory=Throughput)  # KV of other hosts copied
