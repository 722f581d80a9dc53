"""What the passes of a runner have taken so far: time by phase, and bytes that had to be moved."""

from dataclasses import dataclass


@dataclass(slots=True)
class StepCounters:
    """
    Sums over all passes of one runner.

    Times are those of the thread that asks for the passes, its waiting for other threads within a
    phase included. Bytes are counted once a pass however often a cache gave them again: each matrix
    that was multiplied with, the KV of each sequence as far as its rows look, and what they write.
    """

    weights_s: float = 0.0  # multiplying with matrices
    kv_s: float = 0.0  # writing keys and values, and attention over them
    arithmetic_s: float = 0.0  # all else that kernels compute
    cores_s: float = 0.0  # waiting for cores that other workers of the host have
    weight_bytes: int = 0
    kv_bytes: int = 0

    @property
    def seconds(self) -> tuple[float, float, float, float]:
        """The times, in the order of `PHASES`."""
        return (self.weights_s, self.kv_s, self.arithmetic_s, self.cores_s)
