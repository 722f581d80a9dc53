"""Sizes as people write them: 512MiB, 2GiB, 1500000000, or a share of a file system as 45%."""

import re
import shutil
from pathlib import Path

from slipstream.shared.errors import ConfigurationError

_UNITS = {
    "": 1,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-zA-Z]*|%)")
_HUNDRED = 100.0
_LARGEST = 2**60  # bytes


def parse_size(text: str, directory: Path) -> int:
    """
    Return the bytes; a percentage is that share of the file system that holds `directory`.

    Raises ConfigurationError.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{text!r} is no size: write for example 512MiB, 2GiB or 45%")
    number, unit = float(match["number"]), match["unit"].lower()
    if unit == "%":
        return _share(number, directory)
    if unit not in _UNITS:
        raise ConfigurationError(f"{text!r}: unknown unit {match['unit']!r}, use MiB or GiB")
    if number * _UNITS[unit] > _LARGEST:
        raise ConfigurationError(f"{text[:40]!r} is above the largest size, {_LARGEST >> 40} TiB")
    return int(number * _UNITS[unit])


def _share(percent: float, directory: Path) -> int:
    if not 0 < percent <= _HUNDRED:
        raise ConfigurationError(f"{percent:g}% is no share: write a number above 0, up to 100")
    existing = next(each for each in (directory, *directory.absolute().parents) if each.exists())
    return int(shutil.disk_usage(existing).total * percent / _HUNDRED)
