"""How prompts share the rows of a step, on a prefill worker and on a decode worker. Pure."""

from collections.abc import Sequence


def share_budget(needs: Sequence[int], token_budget: int) -> list[int]:
    """
    Return how many rows each prompt gets of up to `token_budget` in all, oldest first.

    With several prompts none takes more than half of what is left, so that a short one passes a
    long one; what nobody else needs goes to the first.
    """
    shares = [0] * len(needs)
    budget = token_budget
    for idx, need in enumerate(needs):
        is_alone = idx == len(needs) - 1
        shares[idx] = min(need, budget if is_alone else max(1, budget // 2), budget)
        budget -= shares[idx]
    for idx, need in enumerate(needs):
        extra = min(need - shares[idx], budget)
        shares[idx] += extra
        budget -= extra
    return shares
