"""One JSON object a line from our own events and from the libraries' logs alike.

Log events, not sentences: `log.info("prefill_done", num_tokens=12)`. Bind a request's ids once
(`get_logger().bind(**request_fields(...))`) and pass that logger on: context variables leak from
one task to the next. Prompts and generated text are never logged; numbers and hashes of them may
be. Tracebacks leave out local variables, for these hold prompts.
"""

import json
import logging
import sys
from typing import IO, Final

import msgspec
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.ids import RequestId
from slipstream.shared.telemetry.context import SpanContext

ROOT_LOGGER: Final = "slipstream"

# Libraries are heard from here on: below it they tell of every connection and selector.
_LIBRARY_LEVEL: Final = logging.WARNING

_FIRST_FIELDS: Final = ("timestamp", "level", "service", "worker_id", "event")

_encode = msgspec.json.Encoder(enc_hook=repr).encode


class _Handler(logging.StreamHandler[IO[str]]):
    """Ours, so that a second `configure_logging` replaces it and nobody else's."""


def configure_logging(
    service: str,
    worker_id: str | None = None,
    *,
    stream: IO[str] | None = None,
    level: str = "INFO",
    json: bool | None = None,
) -> None:
    """
    Send the logs of this process to `stream` (stdout where None), once in its entry point.

    `json` None means JSON unless the stream is a terminal. Raises ConfigurationError for a level
    that there is not.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigurationError(f"log level {level}: use DEBUG, INFO, WARNING or ERROR")
    stream = sys.stdout if stream is None else stream
    is_json = not stream.isatty() if json is None else json
    shared = _shared_processors(service, worker_id)
    handler = _Handler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *(_json_processors() if is_json else _console_processors()),
            ],
        )
    )
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(_LIBRARY_LEVEL)
    logging.getLogger(ROOT_LOGGER).setLevel(number)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def get_logger() -> FilteringBoundLogger:
    """Return the logger of our own events."""
    logger: FilteringBoundLogger = structlog.get_logger(ROOT_LOGGER)
    return logger


def request_fields(request_id: RequestId, context: SpanContext | None) -> dict[str, str]:
    """Return the fields that tie a line to its request and its trace."""
    fields = {"request_id": str(request_id)}
    if context is not None:
        fields["trace_id"] = context.trace_id
    return fields


def _shared_processors(service: str, worker_id: str | None) -> list[Processor]:
    """Return what is done to our own events and to the libraries' records."""

    def add_origin(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["service"] = service
        if worker_id is not None:
            event.setdefault("worker_id", worker_id)
        return event

    return [
        structlog.stdlib.add_log_level,
        add_origin,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _json_processors() -> list[Processor]:
    transformer = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [structlog.processors.ExceptionRenderer(transformer), _render_json]


def _console_processors() -> list[Processor]:
    # The default formatter shows local variables.
    return [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]


def _render_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    first = {key: event.pop(key) for key in _FIRST_FIELDS if key in event}
    line = {**first, **event}
    try:
        return _encode(line).decode()
    except (TypeError, ValueError, msgspec.MsgspecError):
        # A lone surrogate or a key that is no string: slower, but no line is lost.
        return json.dumps({str(key): value for key, value in line.items()}, default=repr)
