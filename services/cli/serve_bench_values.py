"""Values of options that are lists of numbers, shares or targets."""

import math

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.load.summary import Target, Targets
from slipstream.shared.messages.common import LatencyClassName
from slipstream.shared.scheduling.classes import CLASSES, DEFAULT_CLASS

_LONGEST_NAME = 64
_TPOT_TARGET_MS = 100.0  # of every class: as fast as people read


def parse_positive(text: str, option: str) -> list[float]:
    """Return the numbers of a list with commas. Raises ConfigurationError."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigurationError(f"{option} is {text!r}: write for example 0.5,1,2") from error
    if not all(0 < number < math.inf for number in numbers):
        raise ConfigurationError(f"{option} is {text!r}: every number is above 0")
    return list(dict.fromkeys(numbers))


def parse_shares(text: str | None, option: str) -> dict[str, float]:
    """Return names with their shares: `interactive:3,batch:1`. Raises ConfigurationError."""
    shares: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, has_share, share = part.strip().partition(":")
        try:
            shares[name] = float(share) if has_share else 1.0
        except ValueError as error:
            raise ConfigurationError(
                f"{option} {part!r} has no number behind the colon: write for example a:3,b:1"
            ) from error
        if not name or len(name) > _LONGEST_NAME or not 0 < shares[name] < math.inf:
            raise ConfigurationError(
                f"{option} {part!r}: a name of 1 to {_LONGEST_NAME} characters, a colon, and a "
                "share above 0"
            )
    return shares


def parse_classes(text: str | None) -> dict[LatencyClassName, float]:
    """Return latency classes with their shares. Raises ConfigurationError."""
    return {
        _class(name, "--classes"): each for name, each in parse_shares(text, "--classes").items()
    }


def parse_targets(text: str | None) -> Targets:
    """
    Return targets: `1000/100`, or `1000/100,batch=30000/1000`; None: those of the classes.

    Raises ConfigurationError.
    """
    if text is None:
        by_class = {
            name: Target(each.ttft_target_s * 1000, _TPOT_TARGET_MS)
            for name, each in CLASSES.items()
        }
        return Targets(by_class[DEFAULT_CLASS], by_class)
    default = Target()
    of_classes: dict[LatencyClassName, Target] = {}
    for part in text.split(","):
        name, has_name, pair = part.strip().rpartition("=")
        target = _target(pair, text)
        if has_name:
            of_classes[_class(name, "--targets")] = target
        else:
            default = target
    return Targets(default, of_classes)


def _class(text: str, option: str) -> LatencyClassName:
    for name in CLASSES:
        if name == text:
            return name
    raise ConfigurationError(
        f"{option} {text!r} is no latency class; they are {', '.join(CLASSES)}"
    )


def _target(pair: str, text: str) -> Target:
    try:
        ttft_ms, tpot_ms = (float(each) for each in pair.split("/"))
    except ValueError as error:
        raise ConfigurationError(
            f"--targets {text!r}: {pair!r} is no pair of milliseconds; write for example 1000/100"
        ) from error
    if not (ttft_ms > 0 and tpot_ms > 0):
        raise ConfigurationError(f"--targets {text!r}: both times of {pair!r} are above 0")
    return Target(ttft_ms, tpot_ms)
