"""Let the same log message through once a minute, and say how often it came meanwhile."""

import logging
import threading

from slipstream.shared.rarely import Rarely


class RateLimit(logging.Filter):
    """
    Pass a message of one logger and level once a period.

    What is "the same" is decided by the message before its arguments are filled in.
    """

    def __init__(self, period_s: float = 60.0) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._rarely = Rarely(period_s)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged."""
        with self._lock:
            num_held_back = self._rarely.is_due((record.name, record.levelno, str(record.msg)))
        if num_held_back is None:
            return False
        if num_held_back:
            record.msg = f"{record.msg} ({num_held_back} more like this before)"
        return True
