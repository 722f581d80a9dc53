"""How long a request will wait for its turn, by how fast the queue moves. Pure."""

from dataclasses import dataclass

# The rate is that of about the last so many seconds in which anybody waited.
_WINDOW_S = 5.0
_MIN_OBSERVED_S = 0.5  # before that nothing is claimed


@dataclass
class WaitEstimate:
    """
    Work that leaves the queue per second while it isn't empty.

    What an idle scheduler places tells nothing of what it could: only time counts in which somebody
    was left waiting after a look at who could run. Long ago says nothing of now.
    """

    _observed_s: float = 0.0  # decaying sums, of one window
    _work_s: float = 0.0
    _at: float | None = None  # until when they are; None: nobody waits
    _left_at: float = 0.0  # when somebody waited last

    def took(self, work_s: float, now: float) -> None:
        """A request was placed that had to wait, or somebody else had."""
        if self._at is not None:
            self._pass_time(now)
            self._work_s += work_s

    def looked(self, now: float, *, is_anyone_left: bool) -> None:
        """Note whether somebody waits, now that all who can run have been placed."""
        if self._at is not None:
            self._pass_time(now)
        elif is_anyone_left and now - self._left_at > _WINDOW_S:
            self._observed_s = self._work_s = 0.0
        if is_anyone_left or self._at is not None:
            self._left_at = now
        self._at = now if is_anyone_left else None

    def wait_s(self, work_ahead_s: float, least_rate: float) -> float | None:
        """
        Return how long work will take to leave the queue, or None when that isn't known.

        `least_rate`: what workers do at least, however long none of them has had a seat to give.
        """
        if work_ahead_s <= 0:
            return 0.0
        if self._observed_s < _MIN_OBSERVED_S:
            return None
        return work_ahead_s / max(self._work_s / self._observed_s, least_rate, 1e-3)

    def _pass_time(self, now: float) -> None:
        assert self._at is not None, "only while somebody waits"
        passed_s = max(0.0, now - self._at)
        kept = max(0.0, 1 - passed_s / _WINDOW_S)
        self._observed_s = self._observed_s * kept + passed_s
        self._work_s *= kept
        self._at = now
