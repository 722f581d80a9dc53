"""The OTEL_* variables with which the children of `run` export to its own receiver."""

from collections.abc import Mapping

from slipstream.shared.telemetry.tracing import traces_endpoint

_SCHEDULE_DELAY_MS = 50  # the summary waits for the spans


def forwarding_endpoint(environment: Mapping[str, str]) -> str | None:
    """Return the user's own OTLP/HTTP endpoint, which still gets every span."""
    endpoint = traces_endpoint(environment)
    is_grpc = "grpc" in (
        environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    )
    return None if is_grpc else endpoint


def tracing_to(endpoint: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which every span goes to the receiver, soon."""
    return {
        **environment,
        "OTEL_SDK_DISABLED": "false",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_TRACES_SAMPLER": "parentbased_always_on",
        # Those for traces go before those for everything, so the user's others may stay.
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": str(_SCHEDULE_DELAY_MS),
    }
