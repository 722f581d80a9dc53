"""What KV of two workers must have in common to be moved or shared, as one line of a report."""

from typing import NamedTuple, Self


class KvClass(NamedTuple):
    """Fingerprint of the model, layout of the blocks, and what computes them."""

    model_fingerprint: str
    layout: str
    numerics: str

    def __str__(self) -> str:
        return "|".join(self)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read what a worker reports; None where it reports nothing of the kind."""
        parts = text.split("|", 2)
        return cls(*parts) if len(parts) == len(cls._fields) else None
