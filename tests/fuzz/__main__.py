"""Fuzz every decoder: `make fuzz`. Prints a table, writes JSON, keeps the inputs that broke one."""

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path

from .catalogue import all_targets, shared_out
from .loop import Outcome
from .overseer import run

MAX_GROWTH_KIB = 24 * 1024  # of a process, over four fifths of a decoder's inputs
_HEADS = ("decoder", "inputs", "refused", "accepted", "slowest ms", "RSS growth KiB", "inputs/s")


def main() -> int:
    """Run; 0 when nothing was found."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="over all decoders")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--only", default="", help="decoders whose name begins so")
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    parser.add_argument("--found", type=Path, help="where inputs go that broke something")
    given = parser.parse_args()
    targets = [each for each in all_targets() if each.name.startswith(given.only)]
    began_s = time.monotonic()
    outcomes = run(shared_out(targets, given.inputs), given.seed, given.processes, _tell)
    took_s = time.monotonic() - began_s
    num_inputs = sum(each.num_inputs for each in outcomes)
    _say(_row(*_HEADS))
    for outcome in outcomes:
        _say(_line(outcome))
    wrong = wrongs(outcomes)
    _say(f"{num_inputs} inputs, {took_s:.0f} s, {num_inputs / took_s:.0f} a second: ")
    _say("\n".join(wrong) or "nothing was found")
    if given.output is not None:
        figures = {"num_inputs": num_inputs, "duration_s": took_s, "seed": given.seed}
        figures["decoders"] = [each.as_json() for each in outcomes]  # type: ignore[assignment] # JSON
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    if given.found is not None:
        _keep(given.found, outcomes)
    return 1 if wrong else 0


def wrongs(outcomes: list[Outcome]) -> list[str]:
    """Return what no decoder may do and one has done."""
    found = [f"{each.name}: {it.what}" for each in outcomes for it in each.defects]
    found += [
        f"{each.name}: grew by {each.rss_growth_kib} KiB, {MAX_GROWTH_KIB} are allowed"
        for each in outcomes
        if each.rss_growth_kib > MAX_GROWTH_KIB
    ]
    idle = [f"{each.name}: took none of its inputs" for each in outcomes if not each.num_accepted]
    return found + idle


def _keep(folder: Path, outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        for defect in outcome.defects:
            name = hashlib.sha256(defect.payload).hexdigest()[:12]
            path = folder / outcome.name / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(defect.payload)


def _tell(outcome: Outcome) -> None:
    for defect in outcome.defects:
        sys.stderr.write(f"{outcome.name}: {defect.what}\n  {defect.payload[:200]!r}\n")


def _line(outcome: Outcome) -> str:
    return _row(
        outcome.name,
        outcome.num_inputs,
        outcome.num_refused,
        outcome.num_accepted,
        f"{outcome.slowest_ms:.1f}",
        outcome.rss_growth_kib,
        int(outcome.num_inputs / max(outcome.duration_s, 1e-6)),
    )


def _row(name: object, *figures: object) -> str:
    return f"{name!s:34}" + "".join(f"{each!s:>15}" for each in figures)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
