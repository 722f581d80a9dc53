"""What `slipstream doctor` finds, and how it is shown."""

from collections.abc import Sequence
from typing import Literal

import msgspec

Verdict = Literal["ok", "warning", "problem"]
_MARKS: dict[Verdict, str] = {"ok": "ok", "warning": "look", "problem": "BAD"}


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at. What isn't `ok` says how to mend it."""

    about: str
    verdict: Verdict
    found: str
    remedy: str = ""


def ok(about: str, found: str) -> Finding:
    """Return that all is well."""
    return Finding(about, "ok", found)


def judged(about: str, found: str, *, remedy: str, is_problem: bool = False) -> Finding:
    """Return what works badly, or not at all."""
    return Finding(about, "problem" if is_problem else "warning", found, remedy)


def lines_of(findings: Sequence[Finding]) -> list[str]:
    """Return a line a finding, and below it how to mend it."""
    width = max(len(each.about) for each in findings)
    lines = []
    for each in findings:
        lines.append(f"{_MARKS[each.verdict]:<5}{each.about:<{width}}  {each.found}")
        if each.remedy:
            lines.append(f"{'':<5}{'':<{width}}  -> {each.remedy}")
    return lines
