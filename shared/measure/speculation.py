"""
What speculation should gain, from what was accepted and what a step with drafts costs.

Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", 2023, with a
cost of verifying: of a step that verifies gamma drafts, each accepted with the probability alpha,

    S = E / (gamma c + r),    E = (1 - alpha^(gamma + 1)) / (1 - alpha),

where gamma c is the time of drafting and r that of verifying, in steps without drafts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slipstream.shared.messages.common import Usage


@dataclass(frozen=True, slots=True)
class Drafting:
    """What drafting did to one output, behind its first token."""

    num_tokens: int
    num_steps: int
    num_draft_steps: int  # of them with drafts
    num_drafted: int
    num_tested: int
    num_accepted: int

    @classmethod
    def of(cls, usage: Usage) -> "Drafting":
        """Count the steps by their tokens: one each, and the drafts that were accepted."""
        num_tokens = usage.num_output_tokens - 1
        return cls(
            num_tokens=num_tokens,
            num_steps=num_tokens - usage.num_accepted_tokens,
            num_draft_steps=usage.num_draft_steps,
            num_drafted=usage.num_drafted_tokens,
            num_tested=usage.num_tested_tokens,
            num_accepted=usage.num_accepted_tokens,
        )

    @property
    def draft_share(self) -> float:
        """The share of the steps that verified drafts."""
        return self.num_draft_steps / self.num_steps

    @property
    def drafts_per_step(self) -> float:
        """Gamma: drafts of a step that has any."""
        return self.num_drafted / self.num_draft_steps if self.num_draft_steps else 0.0

    @property
    def acceptance(self) -> float:
        """Alpha: of the drafts that were tested those that were accepted."""
        return self.num_accepted / self.num_tested if self.num_tested else 0.0


def total(outputs: Iterable[Drafting]) -> Drafting:
    """Return the sums."""
    columns = zip(
        *(
            (
                *(each.num_tokens, each.num_steps, each.num_draft_steps),
                *(each.num_drafted, each.num_tested, each.num_accepted),
            )
            for each in outputs
        ),
        strict=True,
    )
    return Drafting(*map(sum, columns))


@dataclass(frozen=True, slots=True)
class StepRatios:
    """Gamma c + r by gamma, at points that were measured; a step without drafts takes 1."""

    points: Sequence[tuple[float, float]]  # gamma and ratio, in the order of gamma

    def at(self, num_drafts: float) -> float:
        """Interpolate; behind the last point go on as between the last two."""
        known = [(0.0, 1.0), *self.points]
        assert len(known) > 1, "nothing was measured"
        after = next((idx for idx, point in enumerate(known) if point[0] >= num_drafts), -1)
        after = max(after, 1) if after >= 0 else len(known) - 1
        (left, low), (right, high) = known[after - 1], known[after]
        return low + (high - low) * (num_drafts - left) / (right - left)


def expected_tokens(acceptance: float, num_drafts: float) -> float:
    """Return E, the tokens of a step with so many drafts."""
    if acceptance >= 1.0:
        return num_drafts + 1.0
    return float((1 - acceptance ** (num_drafts + 1)) / (1 - acceptance))


def ratio_with_drafts(time_ratio: float, draft_share: float) -> float:
    """Return the ratio of a step with drafts, where only a share of the steps had any."""
    return (time_ratio - (1 - draft_share)) / draft_share


def predicted_speedup(outputs: Iterable[Drafting], ratios: StepRatios | None) -> float:
    """
    Return S over whole outputs; without drafts no ratios are needed.

    Each has an acceptance and a length of drafts of its own, and steps without drafts, which take
    1 and bring one token.
    """
    plain, drafted = 0.0, 0.0
    for each in outputs:
        gamma, share = each.drafts_per_step, each.draft_share
        tokens = 1 - share + share * expected_tokens(each.acceptance, gamma)
        cost = 1 - share + share * (ratios.at(gamma) if share and ratios else 1.0)
        plain += each.num_tokens
        drafted += each.num_tokens * cost / tokens
    return plain / drafted
