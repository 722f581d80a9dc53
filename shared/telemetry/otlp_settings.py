"""The OTEL_* variables that decide whether, where and how spans are exported, checked at start."""

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

import msgspec

from slipstream.shared.errors import ConfigurationError

HTTP_PROTOBUF = "http/protobuf"
GRPC = "grpc"

# The SDK waits 5 s and queues 2048. A killed process loses what it has queued, hence the shorter
# wait; a burst of short requests ends more spans than its queue holds, hence the longer queue.
_DEFAULT_SCHEDULE_DELAY_MS = 500.0
_DEFAULT_MAX_QUEUE_SIZE = 8192
_DEFAULT_MAX_BATCH_SIZE = 512
# The SDK's 10 s would show in how long a process takes to exit when the collector is away.
_DEFAULT_TIMEOUT_S = 2.0


class OtlpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where spans are sent, and how."""

    endpoint: str
    protocol: str
    headers: dict[str, str]
    compression: str
    timeout_s: float
    certificate: str | None
    client_key: str | None
    client_certificate: str | None
    schedule_delay_ms: float
    max_queue_size: int
    max_batch_size: int
    resource_attributes: dict[str, str]


def traces_endpoint(environment: Mapping[str, str]) -> str | None:
    """Return the address that spans go to, None where tracing is off."""
    if not _is_on(environment):
        return None
    own = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
    base = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    if own or not base:
        return own or None
    return base if _protocol(environment) == GRPC else f"{base.rstrip('/')}/v1/traces"


def read_settings(environment: Mapping[str, str]) -> OtlpSettings | None:
    """Return the settings, None where tracing is off. Raises ConfigurationError."""
    endpoint = traces_endpoint(environment)
    if endpoint is None:
        return None
    protocol = _protocol(environment)
    if protocol == HTTP_PROTOBUF and urlsplit(endpoint).scheme not in {"http", "https"}:
        raise ConfigurationError(f"OTLP endpoint {endpoint}: write http://host:port")
    max_queue_size = int(_number(environment, "OTEL_BSP_MAX_QUEUE_SIZE", _DEFAULT_MAX_QUEUE_SIZE))
    max_batch_size = _number(environment, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", _DEFAULT_MAX_BATCH_SIZE)
    return OtlpSettings(
        endpoint=endpoint,
        protocol=protocol,
        headers=_pairs(_otlp(environment, "HEADERS") or ""),
        compression=_compression(environment),
        timeout_s=_timeout_s(environment),
        certificate=_otlp(environment, "CERTIFICATE"),
        client_key=_otlp(environment, "CLIENT_KEY"),
        client_certificate=_otlp(environment, "CLIENT_CERTIFICATE"),
        schedule_delay_ms=_number(
            environment, "OTEL_BSP_SCHEDULE_DELAY", _DEFAULT_SCHEDULE_DELAY_MS
        ),
        max_queue_size=max_queue_size,
        max_batch_size=min(int(max_batch_size), max_queue_size),
        resource_attributes=_pairs(environment.get("OTEL_RESOURCE_ATTRIBUTES", "")),
    )


def _is_on(environment: Mapping[str, str]) -> bool:
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() or "otlp"
    if exporter not in {"otlp", "none"}:
        raise ConfigurationError(f"OTEL_TRACES_EXPORTER={exporter}: use otlp or none")
    return exporter == "otlp"


def _otlp(environment: Mapping[str, str], name: str) -> str | None:
    """Return an exporter's variable; the one for traces goes before the one for everything."""
    for prefix in ("OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"):
        value = environment.get(prefix + name, "").strip()
        if value:
            return value
    return None


def _protocol(environment: Mapping[str, str]) -> str:
    protocol = _otlp(environment, "PROTOCOL") or HTTP_PROTOBUF
    if protocol not in {HTTP_PROTOBUF, GRPC}:
        raise ConfigurationError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}: use {HTTP_PROTOBUF} or {GRPC}"
        )
    return protocol


def _compression(environment: Mapping[str, str]) -> str:
    compression = (_otlp(environment, "COMPRESSION") or "none").lower()
    if compression not in {"none", "gzip", "deflate"}:
        raise ConfigurationError(
            f"OTEL_EXPORTER_OTLP_COMPRESSION={compression}: use none, gzip or deflate"
        )
    return compression


def _timeout_s(environment: Mapping[str, str]) -> float:
    """Return the timeout of one export. In seconds, as Python's exporters read the variable."""
    for name in ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"):
        if environment.get(name, "").strip():
            return _number(environment, name, _DEFAULT_TIMEOUT_S)
    return _DEFAULT_TIMEOUT_S


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, "").strip()
    try:
        number = float(text) if text else default
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ConfigurationError(f"{name}={text}: use a number above 0")
    return number


def _pairs(text: str) -> dict[str, str]:
    """Read `a=1,b=2`; a part without `=` is left out, as the OpenTelemetry SDKs do."""
    pairs = (part.split("=", 1) for part in text.split(",") if "=" in part)
    return {key.strip(): unquote(value.strip()) for key, value in pairs}
