"""What a client of the bus answers, and how often it did: the figures of service discovery."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Endpoint:
    """A subject on which questions are answered, and what came of them."""

    name: str
    subject: str
    queue: str = ""
    num_requests: int = 0
    num_errors: int = 0
    last_error: str = ""  # its code alone: messages may quote what a client sent
    processing_ns: int = 0

    @property
    def average_ns(self) -> int:
        """Mean time of a question."""
        return self.processing_ns // self.num_requests if self.num_requests else 0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count a question and the time until it is answered, also when that fails."""
        began_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            self.num_requests += 1
            self.processing_ns += time.perf_counter_ns() - began_ns

    def failed(self, code: str) -> None:
        """Count an answer that was an error."""
        self.num_errors += 1
        self.last_error = code
