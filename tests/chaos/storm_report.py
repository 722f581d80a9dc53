"""What a storm came to: figures, and a table of them."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from slipstream.shared.measure.load.summary import percentile
from tests.chaos.storm_clients import Told, Undisturbed
from tests.chaos.storm_plan import recovery_gaps

SHORTEST_GAP_S = 0.25  # of a stream that a kill has hit


class Report(msgspec.Struct, frozen=True):
    """The figures of one run."""

    num_requests: int
    seconds: float
    kills: dict[str, int]
    faults: dict[str, int]
    num_skipped: int
    lost: list[str]  # what was wrong with each request that was not answered right
    num_repeats: dict[str, int]  # requests that their client had to send again, by kind of client
    num_forgotten: int  # of these because their scheduler died, and their worker too
    num_resumes: int
    num_told_twice: int  # endings that came again, as at-least-once delivery may
    num_hit: int  # gaps between tokens that a kill fell into
    recovery_p50_s: float
    recovery_p95_s: float
    recovery_max_s: float
    left_over: list[str]
    problems: list[str]  # of the KV managers' books

    def table(self) -> str:
        """Return the figures for a person."""
        rows = [
            ("requests", f"{self.num_requests} in {self.seconds:.0f} s"),
            ("kills", _listed(self.kills)),
            ("other faults", _listed(self.faults)),
            ("lost, doubled or wrong", str(len(self.lost))),
            ("asked again by clients", _listed(self.num_repeats)),
            ("forgotten with a scheduler", str(self.num_forgotten)),
            ("resumed by plain clients", str(self.num_resumes)),
            ("endings told twice", str(self.num_told_twice)),
            ("streams hit", str(self.num_hit)),
            (
                "recovery p50 / p95 / max",
                " / ".join(
                    f"{each:.2f} s"
                    for each in (self.recovery_p50_s, self.recovery_p95_s, self.recovery_max_s)
                ),
            ),
            ("left over", str(len(self.left_over))),
            ("problems of the books", str(len(self.problems))),
        ]
        return "\n".join(f"| {name} | {value} |" for name, value in rows)


def _listed(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in numbers.items()) or "none"


def report_of(
    told: Sequence[Told],
    blows: Sequence[tuple[float, str, str]],
    seconds: float,
    *,
    undisturbed: Undisturbed,
    num_skipped: int,
    left_over: list[str],
    problems: list[str],
) -> Report:
    """Sum a run up; a blow is its moment, its fault and the role that it hit."""
    moments = [at for at, fault, _ in blows if fault == "kill"]
    gaps = sorted(
        gap for each in told for gap in recovery_gaps(each.arrivals_s, moments, SHORTEST_GAP_S)
    )
    problem_of = ((each, each.problem(undisturbed)) for each in told)
    lost = [f"{each.kind}: {problem}" for each, problem in problem_of if problem is not None]
    repeats = Counter[str]()
    for each in told:
        repeats[each.kind] += each.num_repeats > 0
    return Report(
        num_requests=len(told),
        seconds=seconds,
        kills=dict(Counter(role for _, fault, role in blows if fault == "kill")),
        faults=dict(Counter(fault for _, fault, _ in blows if fault != "kill")),
        num_skipped=num_skipped,
        lost=lost,
        num_repeats=dict(repeats),
        num_forgotten=sum(each.num_forgotten for each in told),
        num_resumes=sum(each.num_resumes for each in told),
        num_told_twice=sum(max(0, each.num_endings - 1) for each in told),
        num_hit=len(gaps),
        recovery_p50_s=percentile(gaps, 50) if gaps else 0.0,
        recovery_p95_s=percentile(gaps, 95) if gaps else 0.0,
        recovery_max_s=max(gaps, default=0.0),
        left_over=left_over,
        problems=problems,
    )
