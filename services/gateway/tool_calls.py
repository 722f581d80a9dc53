"""Find the calls of tools in an answer, piece by piece as it comes. Pure."""

import re
import secrets
from dataclasses import dataclass

import msgspec

from slipstream.services.gateway.tools import CALL_BEGIN, CALL_END, CallForm

_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*'
)


@dataclass(frozen=True)
class Words:
    """Text that is no call."""

    text: str


@dataclass(frozen=True)
class CallBegins:
    """A call of a function; its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class Arguments:
    """More of a call's arguments, which are JSON."""

    index: int
    text: str


Piece = Words | CallBegins | Arguments


class _CallReader:
    """Reads one `{"name": ..., "arguments": {...}}`; what follows it is not its own."""

    def __init__(self, index: int) -> None:
        self.is_complete = False
        self._index = index
        self._head = ""
        self.has_begun = False
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False

    def feed(self, text: str) -> list[Piece]:
        """Return what is new of the call."""
        if self.has_begun:
            return self._arguments(text)
        self._head += text
        found = _HEAD.match(self._head)
        if found is None:
            return []
        rest, self._head = self._head[found.end() :], self._head[: found.end()]
        return [self._begin(msgspec.json.decode(found["name"])), *self._arguments(rest)]

    def close(self) -> list[Piece]:
        """Return what was kept back, in whatever form it is."""
        if self.has_begun or not self._head:
            return []
        try:
            call = msgspec.json.decode(self._head, type=_Call)
        except (msgspec.MsgspecError, RecursionError):
            return [Words(self._head)]
        arguments = call.arguments if call.arguments is not None else call.parameters
        text = msgspec.json.encode(arguments or {}).decode()
        return [self._begin(call.name), Arguments(self._index, text)]

    def _begin(self, name: str) -> CallBegins:
        self.has_begun = True
        return CallBegins(self._index, f"call_{secrets.token_hex(12)}", name)

    def _arguments(self, text: str) -> list[Piece]:
        if not self._depth and not self._is_in_string:
            text = text.lstrip()
        taken = text[: self._end_of_value(text)] if not self.is_complete else ""
        return [Arguments(self._index, taken)] if taken else []

    def _end_of_value(self, text: str) -> int:
        """Return where the object of arguments ends in a text, or the text's length."""
        for position, character in enumerate(text):
            if self._is_in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif character == "\\":
                    self._is_escaped = True
                elif character == '"':
                    self._is_in_string = False
            elif character == '"':
                self._is_in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    self.is_complete = True
                    # Of a value that is no object the brace is the call's own.
                    return position + (self._depth == 0)
        return len(text)


class _Call(msgspec.Struct):
    name: str
    arguments: dict[str, msgspec.Raw] | None = None
    parameters: dict[str, msgspec.Raw] | None = None


class ToolCallReader:
    """Turns the text of one choice into words and calls."""

    def __init__(self, form: CallForm) -> None:
        self._num_closed = 0
        self._form = form
        self._kept = ""  # may be the beginning of a mark
        self._call: _CallReader | None = self._open() if form == "whole" else None

    @property
    def num_calls(self) -> int:
        """Calls that have begun; what only looked like one doesn't count."""
        return self._num_closed + (self._call is not None and self._call.has_begun)

    @property
    def _is_over(self) -> bool:
        """Whether the only call that was allowed has been made: the rest is not told."""
        return self._form == "marked_once" and self._num_closed > 0

    def feed(self, text: str) -> list[Piece]:
        """Return what a stretch of text adds."""
        if self._form == "whole":
            assert self._call is not None, "all of it is one call"
            return self._call.feed(text)
        self._kept += text
        pieces: list[Piece] = []
        while True:
            mark = CALL_BEGIN if self._call is None else CALL_END
            before, found, after = self._kept.partition(mark)
            if not found:
                break
            pieces += self._take(before)
            self._kept = after
            self._turn(pieces)
        # What may be half a mark waits for its other half.
        num_kept = _num_begun(self._kept, mark)
        ready = self._kept[: len(self._kept) - num_kept]
        self._kept = self._kept[len(ready) :]
        return pieces + self._take(ready)

    def close(self) -> list[Piece]:
        """Return what was kept back when nothing more comes."""
        pieces = self._take(self._kept)
        self._kept = ""
        return pieces + (self._call.close() if self._call is not None else [])

    def _open(self) -> _CallReader:
        return _CallReader(self._num_closed)

    def _turn(self, pieces: list[Piece]) -> None:
        if self._is_over:
            return
        if self._call is None:
            self._call = self._open()
        else:
            pieces += self._call.close()
            self._num_closed += self._call.has_begun
            self._call = None

    def _take(self, text: str) -> list[Piece]:
        if not text or self._is_over:
            return []
        if self._call is not None:
            return self._call.feed(text)
        # Between calls stand only blanks for the eye.
        is_blank = self.num_calls > 0 and not text.strip()
        return [] if is_blank else [Words(text)]


def _num_begun(text: str, mark: str) -> int:
    """Return how many characters at the end of a text begin a mark."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if mark.startswith(text[-size:])), 0)
