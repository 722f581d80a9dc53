"""What the passes of a runner have taken so far: time by phase, and bytes that had to be moved."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class StepCounters:
    """
    Sums over all passes of one runner.

    Times are those of the thread that asks for the passes, its waiting for other threads within a
    phase included. Bytes are counted once a pass however often a cache gave them again: each matrix
    that was multiplied with, the KV of each sequence as far as its rows look, and what they write.
    """

    # By `Phase` of kernels/cpu/phases.h; the kernels add to it, and nobody reads it during a pass.
    phase_ns: Iterable[int] = (0, 0, 0, 0)
    weight_bytes: int = 0
    kv_bytes: int = 0

    @property
    def seconds(self) -> tuple[float, float, float, float]:
        """
        The times: of matrices, KV, other arithmetic, waiting for cores.

        KV is writing keys and values, and attention over them; cores are those that other workers
        of the host have.
        """
        other, weights, kv, cores = (each * 1e-9 for each in self.phase_ns)
        return (weights, kv, other, cores)
