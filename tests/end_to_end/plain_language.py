"""
Languages of bytes, followed a byte at a time by derivatives: what a constraint allows next.

Languages that are written alike are one object, so that they compare and hash by identity.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Language:
    """Texts that match. Anything but `NOTHING` has one, anything but `EMPTY` a longer one."""

    is_nullable: bool  # the empty text matches

    def after(self, byte: int) -> "Language":
        """Return what may follow a first byte: a derivative."""
        return _after(self, byte)

    def after_all(self, text: bytes) -> "Language":
        """Return what may follow a beginning."""
        language = self
        for byte in text:
            if language is NOTHING:
                break
            language = language.after(byte)
        return language

    def _derivative(self, byte: int) -> "Language":
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class _OneOf(Language):
    allowed: frozenset[int]

    def _derivative(self, byte: int) -> Language:
        return EMPTY if byte in self.allowed else NOTHING


@dataclass(frozen=True, eq=False)
class _Then(Language):
    first: Language
    rest: Language

    def _derivative(self, byte: int) -> Language:
        later = then(self.first.after(byte), self.rest)
        return either(later, self.rest.after(byte)) if self.first.is_nullable else later


@dataclass(frozen=True, eq=False)
class _Either(Language):
    parts: frozenset[Language]

    def _derivative(self, byte: int) -> Language:
        return either(*(part.after(byte) for part in self.parts))


@dataclass(frozen=True, eq=False)
class _Repeated(Language):
    one: Language
    least: int
    most: int | None

    def _derivative(self, byte: int) -> Language:
        most = None if self.most is None else self.most - 1
        return then(self.one.after(byte), repeated(self.one, max(0, self.least - 1), most))


# No byte follows on either.
NOTHING = _OneOf(is_nullable=False, allowed=frozenset())
EMPTY = _OneOf(is_nullable=True, allowed=frozenset())


@cache
def _after(language: Language, byte: int) -> Language:
    return language._derivative(byte)


@cache
def one_of(characters: str) -> Language:
    """Return one character out of some, of ASCII."""
    return _OneOf(is_nullable=False, allowed=frozenset(characters.encode("ascii")))


@cache
def literal(text: str) -> Language:
    """Return a text, and no other."""
    return then(*(_byte(byte) for byte in text.encode()))


@cache
def _byte(byte: int) -> Language:
    return _OneOf(is_nullable=False, allowed=frozenset([byte]))


def then(*parts: Language) -> Language:
    """Return one after the other."""
    language: Language = EMPTY
    for part in reversed(parts):
        language = _pair(part, language)
    return language


@cache
def _pair(first: Language, rest: Language) -> Language:
    if NOTHING in (first, rest):
        return NOTHING
    if first is EMPTY or rest is EMPTY:
        return rest if first is EMPTY else first
    if isinstance(first, _Then):
        # Always the same way round, or languages would look different that are written alike.
        return _pair(first.first, _pair(first.rest, rest))
    return _Then(is_nullable=first.is_nullable and rest.is_nullable, first=first, rest=rest)


def either(*parts: Language) -> Language:
    """Return any of them."""
    flat = {
        each for part in parts for each in (part.parts if isinstance(part, _Either) else [part])
    }
    return _union(frozenset(flat - {NOTHING}))


@cache
def _union(parts: frozenset[Language]) -> Language:
    if len(parts) <= 1:
        return next(iter(parts), NOTHING)
    return _Either(is_nullable=any(part.is_nullable for part in parts), parts=parts)


@cache
def repeated(one: Language, least: int, most: int | None = None) -> Language:
    """Return so many of one that isn't empty, one after the other."""
    assert not one.is_nullable, "it could repeat for ever without a byte"
    return EMPTY if most == 0 else _Repeated(least == 0, one, least, most)


class TokenMasks:
    """Which tokens go on with a language, found by trying them all."""

    def __init__(self, tokens: Sequence[bytes], end_ids: Collection[int]) -> None:
        """Take the bytes of each token, none for one that is never part of a match."""
        self._end_ids = list(end_ids)
        self._tokens = tokens
        self._by_first: list[list[tuple[int, bytes]]] = [[] for _ in range(256)]
        for token_id, token in enumerate(tokens):
            if token:
                self._by_first[token[0]].append((token_id, token[1:]))
        self._known: dict[Language, Mask] = {}

    def allowed(self, language: Language) -> Mask:
        """Return the tokens behind which some text still matches [vocab]."""
        if language not in self._known:
            self._known[language] = self._try_all(language)
        return self._known[language]

    def after(self, language: Language, token_id: int) -> Language:
        """Return what may follow a token: behind the end nothing does."""
        return EMPTY if token_id in self._end_ids else language.after_all(self._tokens[token_id])

    def _try_all(self, language: Language) -> Mask:
        mask = np.zeros(len(self._tokens), np.bool_)
        mask[self._end_ids] = language.is_nullable
        for byte, tokens in enumerate(self._by_first):
            begun = language.after(byte)
            if begun is NOTHING:
                continue
            for token_id, rest in tokens:
                mask[token_id] = begun.after_all(rest) is not NOTHING
        return mask
