"""What the options of `slipstream bench speculate` ask for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar, get_args

from slipstream.services.cli.bench_run import parse_numbers
from slipstream.services.cli.name_lists import parse_names
from slipstream.services.cli.speculate_bench_options import SpeculateBenchOptions
from slipstream.shared.config import DraftKind
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.prompt_sets import SETS, PromptSet, read_set

OFF = "off"
ON = "ngram"  # what a request says that wants drafts, whatever they are made of
DRAFT_KINDS: tuple[DraftKind, ...] = get_args(DraftKind)
_MAX_TEMPERATURE = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cell:
    """One row: how the prompts of a set are decoded."""

    set_name: str
    draft: str
    batch: int
    temperature: float

    @property
    def name(self) -> str:
        """For people."""
        return (
            f"{self.set_name}, {self.draft}, batch {self.batch}, temperature {self.temperature:g}"
        )


@dataclass(frozen=True, slots=True)
class SpeculatePlan:
    """Everything that is measured."""

    sets: Sequence[PromptSet]
    drafts: Sequence[DraftKind]
    batches: Sequence[int]
    temperatures: Sequence[float]
    num_output_tokens: int
    seed: int
    max_num_pairs: int


def make_plan(options: SpeculateBenchOptions) -> SpeculatePlan:
    """Read the options and the sets. Raises ConfigurationError."""
    names = parse_names(options.sets, "--sets", SETS)
    sets = [read_set(name) for name in dict.fromkeys(names)]
    wanted = parse_names(options.drafts, "--draft", DRAFT_KINDS)
    drafts = [kind for kind in DRAFT_KINDS if kind in wanted]
    if options.url is not None and len(drafts) > 1:
        raise ConfigurationError(
            f"--draft is {options.drafts!r}: the stack on --url makes drafts of one kind; name that"
        )
    if "model" in drafts and len(drafts) > 1 and options.draft_model is not None:
        raise ConfigurationError(
            f"--draft is {options.drafts!r}, and --draft-model is no model and a trained draft at "
            "once; measure model in a run of its own"
        )
    return SpeculatePlan(
        sets=[PromptSet(each.name, each.prompts[: options.prompts]) for each in sets],
        drafts=drafts,
        batches=parse_numbers(options.batches, "--batch"),
        temperatures=parse_temperatures(options.temperatures),
        num_output_tokens=options.output,
        seed=options.seed,
        max_num_pairs=options.max_pairs,
    )


def parse_temperatures(text: str) -> list[float]:
    """Return the numbers of a list with commas. Raises ConfigurationError."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigurationError(f"--temperature is {text!r}: write for example 0,0.7") from error
    if not all(0 <= number <= _MAX_TEMPERATURE for number in numbers):
        raise ConfigurationError(
            f"--temperature is {text!r}: every number lies in [0, {_MAX_TEMPERATURE}]"
        )
    return list(dict.fromkeys(numbers))


def waves(items: Sequence[T], size: int) -> Iterator[list[T]]:
    """Cut into groups of one size; the last takes what it lacks from the beginning."""
    num_waves = -(-len(items) // size)
    repeated = (items[idx % len(items)] for idx in range(num_waves * size))
    return iter(lambda: list(islice(repeated, size)), [])
