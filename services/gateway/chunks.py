"""The chunks of a streamed answer as server-sent events: bytes that stay the same are made once."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from slipstream.services.gateway.answers import (
    Book,
    Choice,
    Head,
    finish_reason_of,
    stop_reason_of,
)
from slipstream.services.gateway.errors import ApiError
from slipstream.services.gateway.token_texts import TokenTexts
from slipstream.services.gateway.tool_calls import Arguments, CallBegins, ToolCallReader, Words
from slipstream.shared.messages.common import Accepted
from slipstream.shared.messages.generate import Finished, TokenFrame
from slipstream.shared.messages.sampling import TokenLogprobs

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
_OBJECTS = {"chat": "chat.completion.chunk", "text": "text_completion"}
_json = msgspec.json.Encoder().encode

Event = tuple[int, Accepted | TokenFrame | Finished]  # of which request, what


def _delta(piece: CallBegins | Arguments) -> bytes:
    """Return a call as far as it is new; its arguments follow in pieces."""
    if isinstance(piece, Arguments):
        function: dict[str, str] = {"arguments": piece.text}
        return _json({"index": piece.index, "function": function})
    function = {"name": piece.name, "arguments": ""}
    return _json({"index": piece.index, "id": piece.id, "type": "function", "function": function})


def error_events(error: ApiError) -> bytes:
    """Return how a stream that has begun ends with an error: said, never just broken off."""
    return b"data: " + error.body + b"\n\n" + DONE


@dataclass
class _Pending:
    """What of a choice goes into the next chunk."""

    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class ChunkWriter:
    """Turns what comes into events; all that came since the last time goes into one a choice."""

    def __init__(self, book: Book, head: Head, texts: TokenTexts) -> None:
        self._book = book
        self._plan = book.plan
        self._texts = texts
        self._has_role: set[int] = set()
        self._pending: dict[int, _Pending] = {}
        form = self._plan.call_form
        self._calls = (
            {} if form is None else {choice.index: ToolCallReader(form) for choice in book.choices}
        )
        self._prefix = (
            b'data: {"id":'
            + _json(head.id)
            + b',"object":'
            + _json(_OBJECTS[self._plan.kind])
            + b',"created":'
            + _json(head.created)
            + b',"model":'
            + _json(head.model)
            + b',"system_fingerprint":'
            + _json(head.fingerprint)
            + b',"choices":['
        )
        self._seed = head.seed

    def events(self, batch: Iterable[Event]) -> bytes:
        """Return the events for what has come."""
        written: list[bytes] = []
        for request, event in batch:
            match event:
                case TokenFrame():
                    self._add(self._book.add(request, event), event)
                case Finished():
                    choice = self._book.end(request, event)
                    self._flush(choice.index, written, is_last=True)
                    self._pending.pop(choice.index, None)
                    written.append(self._ending(choice, event))
                case Accepted():
                    self._book.accept(request, event)
        for index in list(self._pending):
            self._flush(index, written)
        return b"".join(written)

    def echo(self, index: int, text: str) -> bytes:
        """Return the event that says the prompt again, before anything of the answer."""
        self._book.choices[index].text_length += len(text)
        return self._chunk(index, b'"text":' + _json(text) + b',"logprobs":null', b"null")

    def last(self) -> bytes:
        """Return what follows when every choice has ended."""
        if not self._plan.has_usage:
            return DONE
        usage = _json(self._book.usage)
        seed = b"" if self._seed is None else b',"seed":' + _json(self._seed)
        journey = b',"slipstream":' + _json(self._book.journey)
        return self._prefix + b'],"usage":' + usage + seed + journey + b"}\n\n" + DONE

    def _add(self, choice: Choice, frame: TokenFrame) -> None:
        pending = self._pending.setdefault(choice.index, _Pending())
        pending.text.append(frame.text)
        if self._plan.has_logprobs:
            pending.logprobs += frame.logprobs or []

    def _flush(self, index: int, written: list[bytes], *, is_last: bool = False) -> None:
        pending = self._pending.pop(index, None) or _Pending()
        text = "".join(pending.text)
        if index in self._calls:
            self._flush_calls(index, text, pending.logprobs, written, is_last=is_last)
        # Tokens that add no text yet, as of half a character, can wait for it.
        elif text or pending.logprobs:
            written.append(self._piece(index, text, pending.logprobs))

    def _flush_calls(
        self,
        index: int,
        text: str,
        logprobs: list[TokenLogprobs],
        written: list[bytes],
        *,
        is_last: bool,
    ) -> None:
        """Write words as such, and calls as what they are."""
        reader = self._calls[index]
        pieces = reader.feed(text) if text else []
        if is_last:
            pieces += reader.close()
        for piece in pieces:
            if isinstance(piece, Words):
                body = b'"content":' + _json(piece.text)
            else:
                is_first = index not in self._has_role
                body = b'"content":null,' if is_first else b""
                body += b'"tool_calls":[' + _delta(piece) + b"]"
            found = _json(self._texts.chat(logprobs)) if logprobs else b"null"
            delta = b'"delta":{' + self._role(index) + body + b'},"logprobs":' + found
            written.append(self._chunk(index, delta, b"null"))
            logprobs = []
        if logprobs and is_last:
            # Of a call's end, which says nothing: there is no next piece.
            body = b'"logprobs":' + _json(self._texts.chat(logprobs))
            written.append(self._chunk(index, b'"delta":{},' + body, b"null"))
        elif logprobs:
            # What says nothing yet goes with the next piece.
            self._pending[index] = _Pending([], logprobs)

    def _piece(self, index: int, text: str, logprobs: list[TokenLogprobs]) -> bytes:
        if self._plan.kind == "chat":
            body = b'"delta":{' + self._role(index) + b'"content":' + _json(text) + b"}"
            found = _json(self._texts.chat(logprobs)) if logprobs else b"null"
        else:
            body = b'"text":' + _json(text)
            offset = self._book.choices[index].text_length - len(text)
            found = _json(self._texts.text(logprobs, offset)) if logprobs else b"null"
        return self._chunk(index, body + b',"logprobs":' + found, b"null")

    def _ending(self, choice: Choice, ending: Finished) -> bytes:
        if self._plan.kind == "chat":
            # Of an answer without a word the role is told here.
            role = self._role(choice.index)
            body = b'"delta":{' + (role + b'"content":""' if role else b"") + b"}"
        else:
            body = b'"text":""'
        stop_reason = _json(stop_reason_of(ending, self._plan))
        more = b',"stop_reason":' + stop_reason + b',"seed":' + _json(ending.seed)
        calls = self._calls.get(choice.index)
        has_calls = calls is not None and calls.num_calls > 0
        reason = _json(finish_reason_of(ending, has_calls=has_calls))
        return self._chunk(choice.index, body + b',"logprobs":null', reason + more)

    def _role(self, index: int) -> bytes:
        """Return the role once, with the first content: alone it would pass for a first token."""
        if index in self._has_role:
            return b""
        self._has_role.add(index)
        return b'"role":"assistant",'

    def _chunk(self, index: int, body: bytes, reason: bytes) -> bytes:
        number = b'{"index":%d,' % index
        end = b',"finish_reason":' + reason + b"}]" + self._usage() + b"}\n\n"
        return self._prefix + number + body + end

    def _usage(self) -> bytes:
        if self._plan.has_usage_always:
            return b',"usage":' + _json(self._book.usage)
        return b',"usage":null' if self._plan.has_usage else b""
