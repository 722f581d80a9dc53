"""Requests, chunks and errors as the OpenAI-compatible gateway has them. Pure."""

import contextlib
import email.utils
import time
from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from slipstream.shared.errors import ProtocolError
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.common import Failed, FinishReason, Route, Timings, Usage
from slipstream.shared.messages.generate import GenerateRequest

CHAT_PATH = "/v1/chat/completions"
TEXT_PATH = "/v1/completions"
_ID_PREFIXES = ("chatcmpl-", "cmpl-")
_MAX_EXCERPT = 200


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    seed: int | None = None


class Journey(msgspec.Struct):
    """How a request went, as our gateway says at the end of an answer."""

    trace_id: str | None = None
    route: str | None = None
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    hand_over_ms: float = 0.0
    ttft_ms: float = 0.0
    tpot_ms: float | None = None
    total_ms: float = 0.0
    num_cached_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    num_steps: int = 0
    num_preemptions: int = 0

    @property
    def timings(self) -> Timings:
        """The times, as answers over NATS have them."""
        return Timings(**{name: getattr(self, name) for name in Timings.__struct_fields__})

    @property
    def known_route(self) -> Route | None:
        """The way it took, where we know the word for it."""
        return next((route for route in get_args(Route) if route == self.route), None)


class Chunk(msgspec.Struct):
    """One event of a stream."""

    id: str = ""
    model: str | None = None
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None  # Any: servers differ
    seed: int | None = None
    slipstream: Journey | None = None

    @property
    def text(self) -> str:
        """What it adds to the text."""
        return "".join(
            (choice.delta.content if choice.delta else choice.text) or "" for choice in self.choices
        )

    @property
    def finish_reason(self) -> FinishReason | None:
        """How the answer ended, in the chunk that says so. Raises ProtocolError."""
        for choice in self.choices:
            match choice.finish_reason:
                case None:
                    continue
                case "stop" | "length" | "abort" as reason:
                    return reason
                case other:
                    raise ProtocolError(f"unknown finish_reason {other!r}")
        return None

    @property
    def token_ids(self) -> list[int]:
        """The ids of its tokens, where the server says them."""
        return [one for choice in self.choices for one in choice.token_ids or ()]

    @property
    def used_seed(self) -> int | None:
        """The seed, where the server says it."""
        return next((each.seed for each in self.choices if each.seed is not None), self.seed)


_chunk_decoder = msgspec.json.Decoder(Chunk)


def chunk_of(event: bytes) -> Chunk:
    """Return an event's chunk. Raises ProtocolError."""
    try:
        return _chunk_decoder.decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"an event of the stream is no chunk: {error}") from error


def path_and_body(request: GenerateRequest) -> tuple[str, bytes]:
    """Return where a request is posted, and what: fields keep their names."""
    fields = msgspec.json.decode(encode(request, "json"))
    if "prompt_token_ids" in fields:
        fields["prompt"] = fields.pop("prompt_token_ids")
    fields["stream_options"] = {"include_usage": True}
    path = TEXT_PATH if request.messages is None else CHAT_PATH
    return path, msgspec.json.encode(fields)


def request_id_of(chunk_id: str) -> RequestId:
    """Return the request's id, which is part of the answer's."""
    for prefix in _ID_PREFIXES:
        if chunk_id.startswith(prefix):
            return RequestId(chunk_id.removeprefix(prefix))
    return RequestId(chunk_id)


def usage_of(usage: _Usage, journey: Journey | None = None) -> Usage:
    """Return the usage in our words, with what only our gateway tells."""
    cached = usage.prompt_tokens_details
    drafts = usage.completion_tokens_details
    num_accepted = (drafts.accepted_prediction_tokens if drafts else None) or 0
    num_rejected = (drafts.rejected_prediction_tokens if drafts else None) or 0
    told = Journey() if journey is None else journey
    num_cached = cached.cached_tokens if cached else None
    return Usage(
        num_prompt_tokens=usage.prompt_tokens,
        num_output_tokens=usage.completion_tokens,
        num_cached_tokens=told.num_cached_tokens if num_cached is None else num_cached,
        num_accepted_tokens=num_accepted or told.num_accepted_tokens,
        num_tested_tokens=num_accepted + num_rejected,
        num_drafted_tokens=told.num_drafted_tokens,
        num_steps=told.num_steps,
        num_preemptions=told.num_preemptions,
    )


def failed_of(error: object, fallback_code: str, retry_after_s: float | None = None) -> Failed:
    """Return the failure that an error object tells of, whatever of it is there."""
    fields = error if isinstance(error, dict) else {"message": error}
    code = next(
        (each for name in ("code", "type") if isinstance(each := fields.get(name), str) and each),
        fallback_code,
    )
    field = fields.get("param")
    return Failed(
        code=code,
        message=str(fields.get("message") or "the server gave no reason"),
        field=field if isinstance(field, str) and field else None,
        retry_after_ms=None if retry_after_s is None else round(retry_after_s * 1000),
    )


def failed_of_body(status: int, body: bytes, retry_after_s: float | None) -> Failed:
    """Return the failure that an answer with another status than 200 tells of."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        content = None
    error = content.get("error") if isinstance(content, dict) else None
    if error is None:
        excerpt = body[:_MAX_EXCERPT].decode(errors="replace").strip()
        error = f"HTTP status {status}" + (f": {excerpt}" if excerpt else "")
    return failed_of(error, f"http_{status}", retry_after_s)


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait that headers tell of, if they do: the exact ones first."""
    with contextlib.suppress(KeyError, ValueError):
        return _bounded(float(headers["retry-after-ms"]) / 1000)
    with contextlib.suppress(KeyError, ValueError):
        return _bounded(float(headers["retry-after"]))
    with contextlib.suppress(KeyError, ValueError):
        date = email.utils.parsedate_to_datetime(headers["retry-after"])
        return _bounded(date.timestamp() - time.time())
    return None


def _bounded(seconds: float) -> float:
    if not seconds < float("inf"):
        raise ValueError(f"{seconds} s is no time to wait")
    return max(0.0, seconds)
