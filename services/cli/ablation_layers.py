"""The layers that `slipstream bench ablation` leaves out, and the settings that do so. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from slipstream.services.cli.name_lists import parse_names
from slipstream.services.cli.serve_bench_stacks import Mode
from slipstream.services.cli.stack import StackSettings
from slipstream.shared.config import KvChoice, WeightChoice

EVERYTHING_ON = "everything on"
EVERYTHING_OFF = "everything off"
# What the checkpoint of the default model is in: nothing is rounded.
PLAIN_FORMAT: Final = "bf16"


@dataclass(frozen=True)
class Layer:
    """Something that a stack can do without."""

    name: str
    without: str  # what is there instead, for people
    variables: Mapping[str, str] = field(default_factory=dict)  # of its services
    weight_format: WeightChoice | None = None
    kv_format: KvChoice | None = None
    has_prefix_cache: bool = True
    keeps_tokens: bool = True  # another format of numbers gives other tokens
    is_of_engine: bool = False  # of the native one

    def taken_from(self, settings: StackSettings) -> StackSettings:
        """Return the settings of a stack without it."""
        return replace(
            settings,
            weight_format=self.weight_format or settings.weight_format,
            kv_format=self.kv_format or settings.kv_format,
            is_prefix_cache_on=settings.is_prefix_cache_on if self.has_prefix_cache else False,
        )


LAYERS = (
    Layer(
        "weights",
        f"weights in {PLAIN_FORMAT}",
        weight_format=PLAIN_FORMAT,
        keeps_tokens=False,
        is_of_engine=True,
    ),
    Layer(
        "kv",
        f"KV in {PLAIN_FORMAT}",
        kv_format=PLAIN_FORMAT,
        keeps_tokens=False,
        is_of_engine=True,
    ),
    Layer(
        "shared heads",
        "a KV head for each query head",
        {"SLIPSTREAM_SHARE_HEADS": "0"},
        is_of_engine=True,
    ),
    Layer("fused step", "op by op through memory", {"SLIPSTREAM_FUSED": "0"}, is_of_engine=True),
    Layer("paging", "a whole context reserved for each request", {"SLIPSTREAM_PAGING": "0"}),
    Layer(
        "continuous batching",
        "a batch ends before the next begins",
        # Or the scheduler would keep back what the next batch is made of.
        {"SLIPSTREAM_CONTINUOUS_BATCHING": "0", "SLIPSTREAM_PROMPT_WINDOW": "1000000"},
    ),
    Layer("chunked prefill", "whole prompts in one step", {"SLIPSTREAM_CHUNKED_PREFILL": "0"}),
    Layer("prefix cache", "every prompt computed whole", has_prefix_cache=False),
    Layer("speculation", "one token a step", {"SLIPSTREAM_SPECULATION": "off"}),
)


@dataclass(frozen=True)
class Variant:
    """A stack that is measured beside the one with everything on."""

    name: str
    without: str
    mode: Mode
    keeps_tokens: bool


def chosen_layers(names: str | None, *, is_native: bool) -> list[Layer]:
    """Return the layers that are named, or all that there are. Raises ConfigurationError."""
    known = [layer for layer in LAYERS if is_native or not layer.is_of_engine]
    if names is None:
        return known
    chosen = parse_names(names, "--layers", [layer.name for layer in known])
    return [layer for layer in known if layer.name in chosen]


def variants_of(
    layers: Sequence[Layer], settings: StackSettings, *, has_everything_off: bool
) -> list[Variant]:
    """Return a stack without each of the layers, and one without any of them."""
    found = [
        Variant(
            layer.name,
            layer.without,
            Mode(name=layer.name, settings=layer.taken_from(settings), variables=layer.variables),
            layer.keeps_tokens,
        )
        for layer in layers
    ]
    if has_everything_off:
        bare = settings
        variables: dict[str, str] = {}
        for layer in layers:
            bare = layer.taken_from(bare)
            variables |= layer.variables
        mode = Mode(name=EVERYTHING_OFF, settings=bare, variables=variables)
        keeps_tokens = all(layer.keeps_tokens for layer in layers)
        found.append(Variant(EVERYTHING_OFF, "none of them", mode, keeps_tokens))
    return found
