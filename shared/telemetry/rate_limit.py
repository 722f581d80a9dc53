"""Let the same log message through once a minute, and say how often it came meanwhile."""

import logging
import threading
import time

_MAX_NUM_KEYS = 256


class RateLimit(logging.Filter):
    """
    Pass a message of one logger and level once a period.

    What is "the same" is decided by the message before its arguments are filled in.
    """

    def __init__(self, period_s: float = 60.0) -> None:
        super().__init__()
        self._period_s = period_s
        self._lock = threading.Lock()
        self._passed: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged."""
        num_held_back = self._count(record)
        if num_held_back is None:
            return False
        if num_held_back:
            record.msg = f"{record.msg} ({num_held_back} more like this before)"
        return True

    def _count(self, record: logging.LogRecord) -> int | None:
        """Return how many were held back since the last that passed, None to hold this back."""
        key = (record.name, record.levelno, str(record.msg))
        now = time.monotonic()
        with self._lock:
            passed_at, num_held_back = self._passed.get(key, (None, 0))
            if passed_at is not None and now - passed_at < self._period_s:
                self._passed[key] = (passed_at, num_held_back + 1)
                return None
            if len(self._passed) >= _MAX_NUM_KEYS:
                self._passed.clear()
            self._passed[key] = (now, 0)
            return num_held_back
