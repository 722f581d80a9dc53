"""What reading a block back costs, and what computing it again does: measured as they happen."""

from dataclasses import dataclass

_NEW_PART = 0.2  # of an average that the newest sample makes
_FORGETTING = 0.97  # of the cost of reading remains, each time that it seems too much


@dataclass
class Average:
    """An average that forgets; None before the first sample."""

    value: float | None = None

    def saw(self, sample: float) -> None:
        """Take a sample."""
        if self.value is None:
            self.value = sample
        else:
            self.value += _NEW_PART * (sample - self.value)


@dataclass
class TierRates:
    """Seconds a byte read from the second tier, and seconds a token computed."""

    byte_s: Average
    token_s: Average

    @classmethod
    def unknown(cls) -> "TierRates":
        """Return rates without samples."""
        return cls(Average(), Average())

    def is_reading_faster(self, num_bytes: int, num_tokens: int) -> bool:
        """
        Tell whether KV is sooner read than computed again.

        A rate that nobody has measured yet is measured by doing it: reading is tried first.
        """
        if self.byte_s.value is None or self.token_s.value is None:
            return True
        is_faster = num_bytes * self.byte_s.value < num_tokens * self.token_s.value
        if not is_faster:
            # Nobody measures what nobody does: one slow moment must not end reading for ever.
            self.byte_s.value *= _FORGETTING
        return is_faster
