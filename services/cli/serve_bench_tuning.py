"""Find the chunk budgets with which each mode of a comparison is at its best."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.services.cli.console import progress
from slipstream.services.cli.interruption import Interruption
from slipstream.services.cli.serve_bench import better, capacity
from slipstream.services.cli.serve_bench_client import LoadClient
from slipstream.services.cli.serve_bench_plan import Level, ServePlan
from slipstream.services.cli.serve_bench_stacks import Mode, started_client
from slipstream.shared.config import DecodeConfig
from slipstream.shared.measure.load.summary import Summary, summarize


@dataclass
class Try:
    """A mode with a chunk budget, and how it kept the targets."""

    mode: Mode
    token_budget: int
    prompt_step_ms: int
    level: Level
    summary: Summary
    is_taken: bool = False


async def levels_of(
    plan: ServePlan, mode: Mode, client: LoadClient
) -> tuple[Sequence[Level], float | None]:
    """Return the levels; and the highest rate, where they are parts of it."""
    if plan.levels:
        return plan.levels, None
    seats = mode.config(DecodeConfig, "decode").num_seats
    highest = await capacity(client, plan, seats * mode.settings.num_decode)
    return plan.levels_at(highest), highest


async def tune(plan: ServePlan, modes: Sequence[Mode], interruption: Interruption) -> list[Try]:
    """
    Try every budget on every mode, each on a stack of its own, and mark the best of each mode.

    All are tried at one load: the middle level, of the first stack's highest rate if it is a part
    of that.
    """
    level: Level | None = None
    tries: list[Try] = []
    for mode in modes:
        found: list[Try] = []
        for token_budget, prompt_step_ms in plan.budgets:
            told = mode.with_budget(token_budget, prompt_step_ms)
            async with started_client(told, interruption) as client:
                if level is None:
                    levels, _ = await levels_of(plan, told, client)
                    level = levels[len(levels) // 2]
                progress(
                    f"tuning {mode.name}: --token-budget {token_budget} --prompt-step-ms "
                    f"{prompt_step_ms} at {level.name}"
                )
                load = plan.load(level, 0, plan.options.tune_seconds)
                run = await client.run(load, "tuning")
            summary = summarize([run], plan.targets)
            found.append(Try(told, token_budget, prompt_step_ms, level, summary))
        best_of(found).is_taken = True
        tries += found
    return tries


def best_of(tries: Sequence[Try]) -> Try:
    """Return the one that kept the targets best; of equals the first."""
    best = tries[0]
    for each in tries[1:]:
        if better(each.summary, best.summary):
            best = each
    return best
