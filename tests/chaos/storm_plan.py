"""What a storm does and when, from its seed. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Literal

Fault = Literal["kill", "freeze", "squeeze", "cut", "clock", "disk"]
BLOW_S = 2.0  # from one kill to the next
# How many of each role's processes die for every ninety kills.
_SHARES = {
    "scheduler": 11,
    "kv": 12,
    "prefill": 17,
    "decode": 20,
    "draft": 10,
    "gateway": 12,
    "nats": 4,
}
_BETWEEN: tuple[Fault, ...] = ("freeze", "cut", "clock", "disk", "squeeze")
_BETWEEN_EVERY = 3  # kills


@dataclass(frozen=True)
class Blow:
    """One fault; who of the role is hit is decided when it falls, among those that are ready."""

    at_s: float
    fault: Fault
    role: str
    lasts_s: float = 0.0


def plan(seed: int, num_kills: int) -> list[Blow]:
    """Return kills every two seconds, shared out by role, and other faults between them."""
    random = Random(seed)
    roles = _roles(num_kills)
    random.shuffle(roles)
    blows = [Blow(BLOW_S * (1 + number), "kill", role) for number, role in enumerate(roles)]
    for number in range(1, num_kills, _BETWEEN_EVERY):
        fault = _BETWEEN[number // _BETWEEN_EVERY % len(_BETWEEN)]
        role = random.choice(("decode", "prefill"))
        at_s = BLOW_S * (number + 0.5)
        blows.append(Blow(at_s, fault, role, random.uniform(0.5, 2.0)))
    return sorted(blows, key=lambda each: each.at_s)


def _roles(num_kills: int) -> list[str]:
    total = sum(_SHARES.values())
    roles = [
        role
        for role, share in _SHARES.items()
        for _ in range(max(1, round(share * num_kills / total)))
    ]
    return roles[:num_kills] if num_kills >= len(_SHARES) else list(_SHARES)


def recovery_gaps(
    arrivals: Sequence[float], blows: Sequence[float], shortest_s: float
) -> list[float]:
    """Return the gaps of a stream that a blow fell into, where they are longer than its steps."""
    return [
        after - before
        for before, after in pairwise(arrivals)
        if after - before >= shortest_s and any(before <= at <= after for at in blows)
    ]
