"""What `slipstream bench speculate` measures: prompts with and without drafts, in turns."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.services.cli.speculate_bench_client import ask_together, check_tokens, decode_ms
from slipstream.services.cli.speculate_bench_plan import OFF, ON, Cell, SpeculatePlan, waves
from slipstream.services.cli.speculate_bench_probe import StepProbe
from slipstream.shared.bus.bus import Bus
from slipstream.shared.client.answers import Answer
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.measure.estimate import Estimate
from slipstream.shared.measure.loops import is_looping
from slipstream.shared.measure.pairs import is_enough, is_first_first
from slipstream.shared.measure.prompt_sets import Prompt, PromptSet
from slipstream.shared.measure.speculation import Drafting, StepRatios
from slipstream.shared.messages.generate import GenerateRequest
from slipstream.shared.model.cache_directory import Report

_WITHOUT_LOOPS = "chat"  # whose figures are of outputs that don't loop


class OnlyLoopsError(SlipstreamError):
    """All outputs of a set loop: of the others there are no figures."""

    code = "only_loops"


@dataclass(frozen=True, slots=True)
class Truth:
    """A set at one temperature: the answers that have to come, and the prompts that count."""

    prompts: Sequence[tuple[Prompt, int]]  # each with its seed
    answers: Mapping[str, Sequence[int]]
    num_looped: int
    num_prompt_tokens: int  # the median


@dataclass
class CellResult:
    """What was found of one cell."""

    cell: Cell
    num_looped: int
    num_prompts: int
    step_ratios: StepRatios | None
    ratios: list[float] = field(default_factory=list)  # time without drafts over time with them
    outputs: list[Drafting] = field(default_factory=list)

    @property
    def speedup(self) -> Estimate:
        """The median of the pairs."""
        return Estimate.of(self.cell.name, self.ratios)


class SpeculateBench:
    """Asks a running stack, one cell after another."""

    def __init__(self, plan: SpeculatePlan, bus: Bus, report: Report) -> None:
        self._plan = plan
        self._bus = bus
        self._report = report
        self._probe = StepProbe(bus, plan.num_output_tokens)

    async def measure(self) -> list[CellResult]:
        """Take every cell. Raises WrongTokensError for the first answer that was changed."""
        found = []
        for prompt_set in self._plan.sets:
            for temperature in self._plan.temperatures:
                truth = await self._truth(prompt_set, temperature)
                found += [
                    await self._cell(Cell(prompt_set.name, draft, batch, temperature), truth)
                    for draft in self._plan.drafts
                    for batch in self._plan.batches
                ]
        return found

    async def _truth(self, prompt_set: PromptSet, temperature: float) -> Truth:
        """Ask everything once: afterwards the prompts are in the prefix cache, too."""
        name = f"{prompt_set.name}, temperature {temperature:g}"
        self._report(f"{name}: asking {len(prompt_set.prompts)} prompts without speculation")
        seeded = [(each, self._plan.seed + idx) for idx, each in enumerate(prompt_set.prompts)]
        answers: dict[str, Answer] = {}
        for wave in waves(seeded, max(self._plan.batches)):
            found = await self._ask(wave, OFF, temperature)
            answers |= {prompt.id: answer for (prompt, _), answer in zip(wave, found, strict=True)}
        looped = {each for each, answer in answers.items() if is_looping(answer.token_ids)}
        self._report(f"{name}: {len(looped)} outputs loop")
        counted = seeded
        if prompt_set.name == _WITHOUT_LOOPS:
            counted = [(prompt, seed) for prompt, seed in seeded if prompt.id not in looped]
        if not counted:
            raise OnlyLoopsError(
                f"{name}: all {len(looped)} outputs loop and don't count; take more --prompts, "
                "a smaller --output, or leave the set out of --sets"
            )
        return Truth(
            prompts=counted,
            answers={prompt.id: answers[prompt.id].token_ids for prompt, _ in counted},
            num_looped=len(looped),
            num_prompt_tokens=round(
                statistics.median(answers[each.id].usage.num_prompt_tokens for each, _ in counted)
            ),
        )

    async def _cell(self, cell: Cell, truth: Truth) -> CellResult:
        self._report(f"{cell.name}: what steps with drafts cost")
        step_ratios = await self._probe.measure(cell, truth.num_prompt_tokens)
        if step_ratios is None:
            self._report(f"{cell.name}: hardly anything is drafted, even where all can be guessed")
        result = CellResult(cell, truth.num_looped, len(truth.prompts), step_ratios)
        while not is_enough(cell.name, result.ratios, self._plan.max_num_pairs):
            await self._pair(result, truth)
            found = result.speedup
            self._report(
                f"{cell.name}: {found.median:.3f} ({found.low:.3f} to {found.high:.3f}) after "
                f"{len(result.ratios)} of at most {self._plan.max_num_pairs} pairs"
            )
        return result

    async def _pair(self, result: CellResult, truth: Truth) -> None:
        """Take all prompts both ways, wave by wave: what disturbs a wave disturbs its twin."""
        cell = result.cell
        spent_ms = {OFF: 0.0, cell.draft: 0.0}
        for turn_idx, wave in enumerate(waves(truth.prompts, cell.batch)):
            is_plain_first = is_first_first(len(result.ratios), turn_idx)
            for way in [OFF, cell.draft] if is_plain_first else [cell.draft, OFF]:
                answers = await self._ask(wave, way, cell.temperature)
                for (prompt, _), answer in zip(wave, answers, strict=True):
                    what = f"{prompt.id}, {cell.name}, speculation {way}"
                    check_tokens(what, answer.token_ids, truth.answers[prompt.id])
                spent_ms[way] += sum(decode_ms(each) for each in answers)
                if way != OFF:
                    result.outputs += [Drafting.of(each.usage) for each in answers]
        result.ratios.append(spent_ms[OFF] / spent_ms[cell.draft])

    async def _ask(
        self, wave: Sequence[tuple[Prompt, int]], way: str, temperature: float
    ) -> list[Answer]:
        return await ask_together(
            self._bus,
            [
                GenerateRequest(
                    messages=prompt.messages,
                    temperature=temperature,
                    seed=seed,
                    max_tokens=self._plan.num_output_tokens,
                    ignore_eos=True,
                    speculation=OFF if way == OFF else ON,
                )
                for prompt, seed in wave
            ],
        )
