"""All decoders that are fuzzed, and how many of the inputs each gets."""

from collections.abc import Callable, Iterable

from . import file_targets, message_targets, text_targets, transfer_targets
from .target import Target

_GROUPS: tuple[Callable[[], list[Target]], ...] = (
    message_targets.targets,
    transfer_targets.targets,
    file_targets.targets,
    text_targets.targets,
)
_LEAST = 20  # inputs of a decoder


def all_targets() -> list[Target]:
    """Return every one."""
    return [target for group in _GROUPS for target in group()]


def find(names: Iterable[str]) -> list[Target]:
    """Return those of these names."""
    known = {target.name: target for target in all_targets()}
    return [known[name] for name in names]


def shared_out(targets: list[Target], num_inputs: int) -> dict[str, int]:
    """Share inputs out by what the decoders are worth: the slow ones get fewer."""
    total = sum(target.share for target in targets)
    counts = {t.name: max(_LEAST, int(num_inputs * t.share / total)) for t in targets}
    counts[max(counts, key=lambda name: counts[name])] += max(0, num_inputs - sum(counts.values()))
    return counts
