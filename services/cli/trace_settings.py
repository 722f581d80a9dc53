"""The OTEL_* variables with which the children of `run` and `up` export to its own receiver."""

from collections.abc import Mapping

from slipstream.shared.telemetry.tracing import traces_endpoint

_SCHEDULE_DELAY_MS = 50  # the summary waits for the spans
_KEEP_DELAY_MS = 500  # nobody waits
_DELAY = "OTEL_BSP_SCHEDULE_DELAY"
_SAMPLER = "OTEL_TRACES_SAMPLER"
_IS_DISABLED = "OTEL_SDK_DISABLED"


def forwarding_endpoint(environment: Mapping[str, str]) -> str | None:
    """Return the user's own OTLP/HTTP endpoint, which still gets every span."""
    return None if _is_grpc(environment) else traces_endpoint(environment)


def may_keep(environment: Mapping[str, str]) -> bool:
    """Tell whether `up` may stand between its children and where the user wants their traces."""
    is_disabled = environment.get(_IS_DISABLED, "").lower() == "true"
    has_own_endpoint = traces_endpoint(environment) is not None
    return not is_disabled and not (has_own_endpoint and _is_grpc(environment))


def kept_at(endpoint: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which spans go to the receiver, as often as the user samples."""
    chosen = {key: environment[key] for key in (_SAMPLER, _DELAY) if key in environment}
    return {**tracing_to(endpoint, environment), _DELAY: str(_KEEP_DELAY_MS), **chosen}


def _is_grpc(environment: Mapping[str, str]) -> bool:
    return "grpc" in (
        environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    )


def tracing_to(endpoint: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which every span goes to the receiver, soon."""
    return {
        **environment,
        _IS_DISABLED: "false",
        "OTEL_TRACES_EXPORTER": "otlp",
        _SAMPLER: "parentbased_always_on",
        # Those for traces go before those for everything, so the user's others may stay.
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        _DELAY: str(_SCHEDULE_DELAY_MS),
    }
