"""How long a request will wait for its turn, by how fast the queue moves. Pure."""

from dataclasses import dataclass, field

# The rate is that of about the last so many seconds in which anybody waited.
_WINDOW_S = 5.0
_MIN_OBSERVED_S = 0.5  # before that nothing is claimed


@dataclass
class WaitEstimate:
    """
    Work that leaves the queue per second while it isn't empty.

    What an idle scheduler places tells nothing of what it could: only time with a queue counts.
    """

    _observed_s: float = 0.0  # decaying sums, of one window
    _work_s: float = 0.0
    _at: float | None = None  # until when they are; None: nobody waits
    _since_at: float = field(default=0.0)

    def took(self, work_s: float, now: float) -> None:
        """A request was placed, out of a queue in which somebody had waited."""
        self._pass_time(now)
        if self._at is not None:
            self._work_s += work_s

    def looked(self, now: float, *, is_anyone_waiting: bool) -> None:
        """Note whether the queue holds anybody from now on."""
        self._pass_time(now)
        self._at = now if is_anyone_waiting else None

    def wait_s(self, work_ahead_s: float) -> float | None:
        """Return how long work will take to leave the queue, or None when that isn't known."""
        if work_ahead_s <= 0:
            return 0.0
        if self._observed_s < _MIN_OBSERVED_S:
            return None
        # Nothing has moved for all of the window: then it will take at least as long again.
        rate = max(self._work_s, 1e-3) / self._observed_s
        return work_ahead_s / rate

    def _pass_time(self, now: float) -> None:
        if self._at is None:
            return
        passed_s = max(0.0, now - self._at)
        kept = max(0.0, 1 - passed_s / _WINDOW_S)
        self._observed_s = self._observed_s * kept + passed_s
        self._work_s *= kept
        self._at = now
