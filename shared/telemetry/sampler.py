"""Which traces are recorded: the standard samplers, decided from ids alone."""

from collections.abc import Callable, Mapping

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.telemetry.context import SpanContext

Sampler = Callable[[str, SpanContext | None], bool]

_DEFAULT = "parentbased_always_on"
_PARENT_BASED = "parentbased_"


def create_sampler(environment: Mapping[str, str]) -> Sampler:
    """Return the sampler that OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG ask for."""
    name = environment.get("OTEL_TRACES_SAMPLER", "").strip().lower() or _DEFAULT
    root = _root_sampler(name.removeprefix(_PARENT_BASED), environment)
    if root is None:
        raise ConfigurationError(
            f"OTEL_TRACES_SAMPLER={name}: use always_on, always_off, traceidratio, "
            "or one of these with parentbased_ in front"
        )
    return _parent_based(root) if name.startswith(_PARENT_BASED) else root


def _root_sampler(name: str, environment: Mapping[str, str]) -> Sampler | None:
    match name:
        case "always_on":
            return lambda _trace_id, _parent: True
        case "always_off":
            return lambda _trace_id, _parent: False
        case "traceidratio":
            return _trace_id_ratio(environment.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1")
        case _:
            return None


def _trace_id_ratio(argument: str) -> Sampler:
    """Sample by the low 64 bits of the trace id, as every SDK does: all of them agree."""
    try:
        ratio = float(argument)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise ConfigurationError(f"OTEL_TRACES_SAMPLER_ARG={argument}: use a number from 0 to 1")
    bound = round(ratio * 2**64)
    return lambda trace_id, _parent: int(trace_id[16:], 16) < bound


def _parent_based(root: Sampler) -> Sampler:
    def sample(trace_id: str, parent: SpanContext | None) -> bool:
        return root(trace_id, None) if parent is None else parent.is_sampled

    return sample
