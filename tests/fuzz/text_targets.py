"""What people and their programs send as text: bodies, lines, events, schemas, variables."""

import atexit
import contextlib
import json
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from slipstream.client.event_stream import EventStream
from slipstream.services.cli.sizes import parse_size
from slipstream.services.gateway.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)
from slipstream.services.gateway.errors import ApiError
from slipstream.services.gateway.fields import BodyReader
from slipstream.services.gateway.keys import read_keys
from slipstream.services.gateway.plans import Asking, plan_chat, plan_completion
from slipstream.services.scheduler.admission import Admission
from slipstream.services.scheduler.constraints import check_constraint, constraint_of
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.errors import (
    ConfigurationError,
    ConstraintError,
    InvalidRequestError,
    MessageTooLargeError,
    ProtocolError,
)
from slipstream.shared.messages.codec import decode_request, encode
from slipstream.shared.messages.sampling import Constraint
from slipstream.shared.model.config import load_config
from slipstream.shared.model.fake_model import write_fake_model
from slipstream.shared.model.grammar import check as check_grammar
from slipstream.shared.model.tokenizer import Tokenizer
from slipstream.shared.openai.batch_lines import custom_id_of, parse_line, read_row
from slipstream.shared.telemetry.context import TRACEPARENT, TRACESTATE, extract
from slipstream.shared.telemetry.otlp_settings import read_settings
from slipstream.shared.telemetry.received import RefusedError, decode_spans, decompress
from slipstream.shared.telemetry.sampler import create_sampler

from .target import Target, golden_json
from .text_samples import (
    BATCH_LINES,
    BATCH_ROWS,
    CHAT_BODIES,
    COMPLETION_BODIES,
    CONSTRAINED,
    ENVIRONMENTS,
    EVENTS,
    REGEXES,
    SCHEMAS,
    otlp_samples,
)


class _Nothing(Exception):  # noqa: N818 - it says that there was nothing in an input
    """The reader answers None for what it can't read."""


def targets() -> list[Target]:
    """Return them all."""
    directory = tempfile.TemporaryDirectory(prefix="fuzz-")
    atexit.register(directory.cleanup)
    model = write_fake_model(Path(directory.name) / "fake")
    tokenizer = Tokenizer(model)
    return [
        *_gateway_targets(tokenizer),
        _admission_target(model, tokenizer),
        *_grammar_targets(),
        *_line_targets(),
        *_telemetry_targets(),
        *_environment_targets(),
    ]


def _gateway_targets(tokenizer: Tokenizer) -> list[Target]:
    """A body up to the requests that the scheduler is asked."""
    reader, asking = BodyReader(), Asking("id", "tenant")

    def chat(payload: bytes) -> object:
        plan = plan_chat(reader.read(payload, ChatBody), asking, tokenizer)
        return plan.timeout_s, [encode(each) for each in plan.requests]

    def completion(payload: bytes) -> object:
        plan = plan_completion(reader.read(payload, CompletionBody), asking)
        return plan.timeout_s, [encode(each) for each in plan.requests]

    def body(name: str, decode: Callable[[bytes], object], samples: list[bytes]) -> Target:
        return Target(f"http.{name}", decode, (ApiError, InvalidRequestError), samples, "json", 1.0)

    tokenize = [b'{"prompt": "a b"}', b'{"messages": [{"role": "user", "content": "x"}]}']
    return [
        body("chat", chat, CHAT_BODIES),
        body("completion", completion, COMPLETION_BODIES),
        body("tokenize", lambda payload: reader.read(payload, TokenizeBody), tokenize),
        body(
            "detokenize", lambda payload: reader.read(payload, DetokenizeBody), [b'{"tokens":[1]}']
        ),
    ]


def _admission_target(model: Path, tokenizer: Tokenizer) -> Target:
    """A request up to where it would wait: fields, template, tokenizer."""
    config = SchedulerConfig(cache_dir=model, engine="fake", is_test_mode=True)
    admission = Admission(config, "fake", load_config(model), tokenizer)

    def admit(payload: bytes) -> object:
        admitted = admission.admit(payload, None)
        assert admitted.prompt_token_ids
        encode(admitted.sampling)
        return admitted

    plain = msgspec.json.decode(golden_json("generate_request")[0])
    plain |= {"model": "fake", "prompt_token_ids": None, "messages": None}
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]}
    samples = [json.dumps(each).encode() for each in (plain, chat, {"prompt": "a", "n": 2})]
    refusals = (InvalidRequestError, MessageTooLargeError)
    return Target("admission", admit, refusals, samples, "json", 0.6)


def _grammar_targets() -> list[Target]:
    def constrained(payload: bytes) -> object:
        requested = constraint_of(decode_request(payload))
        if requested is None:
            raise _Nothing("no constraint")
        check_constraint(requested)
        return requested

    def regex(payload: bytes) -> object:
        check_grammar.__wrapped__(Constraint("regex", _text(payload)))
        return payload

    def schema(payload: bytes) -> object:
        text = json.dumps(_json_object(payload), ensure_ascii=False)
        _text(text.encode("utf-8", "surrogatepass"))
        check_grammar.__wrapped__(Constraint("json", text))
        return payload

    words = (
        b"(",
        b")",
        b"*",
        b"{1,9999}",
        b"[^a",
        b"|",
        b"\\p{L}",
        b"(?i)",
        b"{0,100}{0,100}",
        b"\\b",
    )
    refusals = (InvalidRequestError, ConstraintError, _Nothing)
    return [
        Target("constraint", constrained, refusals, CONSTRAINED, "json", 0.1, cpu_limit_s=4.0),
        Target("grammar.regex", regex, refusals, REGEXES, "bytes", 0.1, words, 4.0),
        Target("grammar.schema", schema, refusals, SCHEMAS, "json", 0.1, cpu_limit_s=4.0),
    ]


def _json_object(payload: bytes) -> dict[str, Any]:  # Any: JSON
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise _Nothing("no JSON") from error
    if not isinstance(found, dict):
        raise _Nothing("no object")
    return found


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise _Nothing("no text") from error


def _line_targets() -> list[Target]:
    def batch_line(payload: bytes) -> object:
        custom_id_of(payload)
        return encode(parse_line(payload).request)

    def row(payload: bytes) -> object:
        found = read_row(payload)
        if found is None:
            raise _Nothing("no row")
        return found.is_answer

    def events(payload: bytes) -> object:
        """The events are the same however the network cuts them."""
        whole = EventStream().feed(payload)
        stream, size = EventStream(), 1 + payload[0] % 7 if payload else 1
        pieces = [payload[at : at + size] for at in range(0, len(payload), size)]
        assert whole == [event for piece in pieces for event in stream.feed(piece)]
        return whole

    words = (b"data:", b"\r\n", b"\n\n", b": ", b"\r", b"event: x\n", b"data\n", b"id:1\n")
    return [
        Target("batch.line", batch_line, (InvalidRequestError,), BATCH_LINES, "json", 0.6),
        Target("batch.row", row, (_Nothing,), BATCH_ROWS, "json", 0.6),
        Target("events", events, (ProtocolError,), EVENTS, "bytes", 0.4, words),
    ]


def _telemetry_targets() -> list[Target]:
    def otlp(payload: bytes) -> object:
        encoding = ("identity", "gzip", "deflate", "br")[payload[0] % 4] if payload else "identity"
        return decode_spans(decompress(payload[1:], encoding))

    def parent(payload: bytes) -> object:
        value = payload.decode("latin-1")
        context = extract({TRACEPARENT: value[:60], TRACESTATE: value})
        if context is None:
            raise _Nothing("no context")
        encode(context)
        return context

    spans = otlp_samples()
    packed = [b"\1" + zlib.compress(each, wbits=31) for each in spans]
    whole = [b"\0" + each for each in spans]
    known = [b"00-" + b"ab" * 16 + b"-" + b"cd" * 8 + b"-01", b"01-" + b"1" * 32 + b"-" + b"2" * 16]
    return [
        Target("otlp", otlp, (RefusedError,), [*whole, *packed], "bytes", 0.4),
        Target("traceparent", parent, (_Nothing,), known, "bytes", 0.6),
    ]


def _environment_targets() -> list[Target]:
    def telemetry(payload: bytes) -> object:
        variables = _variables(payload)
        sampler = create_sampler(variables)
        sampler("0" * 32, None)
        return read_settings(variables)

    def values(payload: bytes) -> object:
        """Sizes, keys of the gateway and shares of tenants, as they stand in variables."""
        for text in _variables(payload).values():
            for read in (_size, _keys, _weights):
                read(text)
        return payload

    refusals = (ConfigurationError, _Nothing)
    words = (b"inf", b"nan", b"1e400", b"%", b"MiB", b"=", b",", b"#", b"9" * 400)
    return [
        Target("environment.otel", telemetry, refusals, ENVIRONMENTS, "json", 0.4, words),
        Target("environment.values", values, refusals, ENVIRONMENTS, "json", 0.2, words),
    ]


def _variables(payload: bytes) -> Mapping[str, str]:
    found = {str(name): str(value) for name, value in _json_object(payload).items()}
    try:
        raw = "".join(found.values()).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise _Nothing("no environment holds this") from error
    if b"\0" in raw:
        raise _Nothing("no environment holds this")
    return found


def _size(text: str) -> None:
    _or_refused(lambda: parse_size(text, Path()))


def _keys(text: str) -> None:
    _or_refused(lambda: read_keys(None, text))


def _weights(text: str) -> None:
    _or_refused(
        lambda: SchedulerConfig(
            cache_dir=Path(), engine="fake", is_test_mode=True, tenant_weights=text
        )
    )


def _or_refused(read: Callable[[], object]) -> None:
    with contextlib.suppress(ConfigurationError):
        read()
