"""The standard samplers, from the standard variables."""

import pytest

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.telemetry.context import SpanContext, new_trace_ids
from slipstream.shared.telemetry.sampler import create_sampler

LOW = "f" * 16 + "0" * 16
HIGH = "0" * 16 + "f" * 16
SAMPLED_PARENT = SpanContext(HIGH, "b" * 16, is_sampled=True)
UNSAMPLED_PARENT = SpanContext(LOW, "b" * 16, is_sampled=False)


def test_everything_is_sampled_unless_told_otherwise() -> None:
    sample = create_sampler({})

    assert sample(HIGH, None)
    assert not sample(LOW, UNSAMPLED_PARENT)


def test_ratio_decides_by_the_low_half_of_the_trace_id() -> None:
    """Every SDK decides by the same bits: processes agree without telling each other."""
    sample = create_sampler(
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}
    )

    assert sample(LOW, None)
    assert not sample(HIGH, None)


def test_ratio_holds_on_average() -> None:
    sample = create_sampler(
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}
    )
    num_sampled = sum(sample(new_trace_ids()[0], None) for _ in range(4000))

    assert 800 < num_sampled < 1200


def test_parent_goes_before_the_ratio() -> None:
    sample = create_sampler(
        {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}
    )

    assert sample(HIGH, SAMPLED_PARENT)
    assert not sample(LOW, UNSAMPLED_PARENT)
    assert sample(LOW, None)


def test_always_off_does_not_ask_the_parent() -> None:
    assert not create_sampler({"OTEL_TRACES_SAMPLER": "always_off"})(LOW, SAMPLED_PARENT)


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_TRACES_SAMPLER": "sometimes"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "nan"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "half"},
    ],
)
def test_a_sampler_that_cannot_be_is_refused_by_name(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="OTEL_TRACES_SAMPLER"):
        create_sampler(environment)
