"""What a step with drafts costs in steps without: measured where every step has drafts."""

import statistics
from collections.abc import Sequence

from slipstream.services.cli.speculate_bench_client import ask_together, check_tokens, decode_ms
from slipstream.services.cli.speculate_bench_plan import OFF, ON, Cell
from slipstream.shared.bus.bus import Bus
from slipstream.shared.client.answers import Answer
from slipstream.shared.measure.pairs import is_first_first
from slipstream.shared.measure.speculation import Drafting, StepRatios, ratio_with_drafts, total
from slipstream.shared.messages.generate import GenerateRequest

_LENGTHS = (1, 2, 4, 8, 16)
_NUM_ROUNDS = 4
_MIN_SHARE = 0.2  # of steps with drafts: of fewer nothing can be said
# Over and over, so that any model goes on with them and any draft sees what follows. More of them
# than the longest draft has tokens: what looks back finds no more than one time round.
_WORDS = (
    *("apple", "river", "green", "window", "seven", "music", "bread", "stone", "happy", "cloud"),
    *("table", "under", "winter", "silver", "dog", "paper", "garden", "early", "north", "yellow"),
)
_MIN_NUM_WORDS = 3 * len(_WORDS)
# A model that is sampled from might turn to something else: whatever these words are made of is
# made so much more likely than the rest, and which of it comes next is left to the model.
_LIKELY = 15.0
_MAX_NUM_LIKELY = 1000


class StepProbe:
    """Decodes outputs that anybody can guess, with drafts of several lengths and without."""

    def __init__(self, bus: Bus, num_output_tokens: int) -> None:
        self._bus = bus
        self._num_output_tokens = num_output_tokens
        self._tokens_per_word = 1.0
        self._bias: dict[str, float] = {}

    async def measure(self, cell: Cell, num_prompt_tokens: int) -> StepRatios | None:
        """
        Return the ratios of step times at a cell's batch, temperature and length of context.

        None where nothing is drafted. Raises WrongTokensError.
        """
        if not self._bias:
            await self._learn()
        num_words = max(_MIN_NUM_WORDS, round(num_prompt_tokens / self._tokens_per_word))
        found: list[tuple[float, float]] = []
        longest = 0.0
        for length in _LENGTHS:
            samples = [
                await self._pair(cell, num_words, length, round_idx)
                for round_idx in range(_NUM_ROUNDS)
            ]
            drafted = total(each for each, _ in samples)
            if drafted.draft_share < _MIN_SHARE or drafted.drafts_per_step < longest + 0.5:
                break  # nothing is drafted, or nothing longer: the worker has a limit
            longest = drafted.drafts_per_step
            found.append((longest, statistics.median(ratio for _, ratio in samples)))
        return StepRatios(found) if found else None

    async def _learn(self) -> None:
        """Ask once, greedily: how many tokens words have, and which ones the model goes on with."""
        request = GenerateRequest(
            prompt=_prompt(0, _MIN_NUM_WORDS),
            temperature=0,
            max_tokens=self._num_output_tokens,
            ignore_eos=True,
            speculation=OFF,
        )
        (answer,) = await ask_together(self._bus, [request])
        self._tokens_per_word = answer.usage.num_prompt_tokens / _MIN_NUM_WORDS
        likely = sorted(set(answer.token_ids))[:_MAX_NUM_LIKELY]
        self._bias = {str(token_id): _LIKELY for token_id in likely}

    async def _pair(
        self, cell: Cell, num_words: int, length: int, round_idx: int
    ) -> tuple[Drafting, float]:
        ways = [OFF, cell.draft] if is_first_first(round_idx, 0) else [cell.draft, OFF]
        answers = {
            way: await ask_together(self._bus, self._requests(cell, way, num_words, length))
            for way in ways
        }
        for plain, drafted in zip(answers[OFF], answers[cell.draft], strict=True):
            check_tokens(f"{cell.name}, the probe", drafted.token_ids, plain.token_ids)
        drafting = total(Drafting.of(each.usage) for each in answers[cell.draft])
        plain_steps = total(Drafting.of(each.usage) for each in answers[OFF]).num_steps
        plain_ms = _sum_ms(answers[OFF]) / plain_steps
        drafted_ms = _sum_ms(answers[cell.draft]) / drafting.num_steps
        share = drafting.draft_share
        ratio = ratio_with_drafts(drafted_ms / plain_ms, share) if share else 1.0
        return drafting, ratio

    def _requests(self, cell: Cell, way: str, num_words: int, length: int) -> list[GenerateRequest]:
        return [
            GenerateRequest(
                prompt=_prompt(first, num_words),
                logit_bias=self._bias,
                temperature=cell.temperature,
                seed=first,
                max_tokens=self._num_output_tokens,
                ignore_eos=True,
                speculation=OFF if way == OFF else ON,
                num_speculative_tokens=None if way == OFF else length,
            )
            for first in range(cell.batch)
        ]


def _prompt(first: int, num_words: int) -> str:
    """Return words from one of them on: no two sequences of a batch begin alike."""
    return " ".join(_WORDS[(first + idx) % len(_WORDS)] for idx in range(num_words))


def _sum_ms(answers: Sequence[Answer]) -> float:
    return sum(decode_ms(each) for each in answers)
