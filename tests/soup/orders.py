"""Random requests, most of them right, each with what its client means to do about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from tests.end_to_end.client import Encoding
from tests.end_to_end.known_bugs.recipes import Request

from . import fields, wrong

BLOCK = 32
CONTEXT = 8192
_DEFAULT_MAX_TOKENS = 256
_TOO_LARGE = 0.02
_NUM_TEMPLATE_TOKENS = 40
_PIECES = ("a", "b", "z", " ", "\n", ".") * 6
_ODD_PIECES = ("é", "🌶", "<|im_end|>")

Fate = Literal["stay", "cancel", "leave", "hurry", "resume"]
# Most stay to the end, for only they must have the right answer.
_FATES: tuple[Fate, ...] = ("stay",) * 6 + ("cancel",) * 3 + ("leave", "hurry", "resume")
_WRONG = 0.12


@dataclass(frozen=True)
class Sizes:
    """How large requests may be."""

    num_blocks: int  # of the pool
    max_num_tokens: int  # of prompt and output together; a few ask for more than the pool has
    max_num_output: int = 100


@dataclass(frozen=True)
class Moment:
    """When a client does something: a while after so many frames, or after the end."""

    num_frames: int
    delay_s: float
    is_after_end: bool
    from_index: int  # for who resumes


@dataclass(frozen=True)
class Order:
    """A request, and what its client does."""

    number: int
    body: Request | bytes
    encoding: Encoding
    fate: Fate
    moments: tuple[Moment, ...] = ()
    error: tuple[str, str | None] | None = None  # code and field of a refusal

    @property
    def is_streamed(self) -> bool:
        """Whether frames come."""
        return not isinstance(self.body, bytes) and self.body.get("stream") is True


class Menu:
    """Draws orders. Prompts often begin alike, so that each finds some of others' blocks."""

    def __init__(self, seed: int, sizes: Sizes) -> None:
        self._random = Random(seed)
        self._sizes = sizes
        lengths = (3 * BLOCK, BLOCK, 2 * BLOCK, 5 * BLOCK, sizes.max_num_tokens)
        self._heads = [self._text(length, _PIECES) for length in lengths]
        self._prompts: list[Request] = []

    def draw(self, num_orders: int) -> list[Order]:
        """Return so many orders."""
        return [self._order(number) for number in range(num_orders)]

    def _order(self, number: int) -> Order:
        random = self._random
        body = self._body()
        if random.random() < 0.5:
            body["stream"] = True
        if random.random() < _WRONG:
            found = wrong.spoil(random, body)
            encoding = found.encoding or self._encoding()
            return Order(number, found.body, encoding, "stay", (), (found.code, found.field))
        fate = random.choice(_FATES)
        if fate == "hurry":
            body["deadline_ms"] = random.choice((1, 5, 20, 60, 200))
        moments = tuple(self._moment() for _ in range(random.choice((1, 1, 2))))
        return Order(number, body, self._encoding(), fate, moments)

    def _body(self) -> Request:
        random, sizes = self._random, self._sizes
        prompt, num_tokens = self._prompt()
        num_left = max(1, sizes.max_num_tokens - num_tokens)
        max_tokens: int | None = random.randint(1, min(num_left, sizes.max_num_output))
        if random.random() < 0.2:
            max_tokens = min(num_left, random.choice((1, 2, BLOCK, sizes.max_num_output)))
        if num_left >= _DEFAULT_MAX_TOKENS and random.random() < 0.1:
            max_tokens = None
        if random.random() < _TOO_LARGE and sizes.num_blocks * BLOCK < CONTEXT:
            max_tokens = sizes.num_blocks * BLOCK + 1
        return {**prompt, **fields.draw_fields(random, max_tokens)}

    def _prompt(self) -> tuple[Request, int]:
        """Return a prompt with about how many tokens it has."""
        random = self._random
        if self._prompts and random.random() < 0.2:
            prompt = random.choice(self._prompts)
            return prompt, _num_tokens(prompt)
        # One is asked for all the time.
        head = self._heads[0] if random.random() < 0.4 else random.choice(self._heads)
        head = head[: random.choice((0, len(head), len(head), random.randint(0, len(head))))]
        if random.random() < 0.2:
            # The same tokens behind another block are another block.
            head = self._heads[1] + head[BLOCK:]
        text = head + self._text(random.choice((0, 1, 5, 40)), _PIECES + _ODD_PIECES)
        prompt = self._written(_cut(text, self._num_prompt_tokens()))
        self._prompts.append(prompt)
        return prompt, _num_tokens(prompt)

    def _num_prompt_tokens(self) -> int:
        random, most = self._random, self._sizes.max_num_tokens - 1
        edges = (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, most)
        if random.random() < 0.2:
            return min(most, random.choice(edges))
        return random.choice((most, random.randint(1, most), random.randint(1, 3 * BLOCK)))

    def _written(self, text: str) -> Request:
        """Return a text as one of the three that a prompt may be."""
        kind = self._random.random()
        if kind < 0.5:
            return {"prompt": text}
        if kind < 0.7:
            content = _cut(text, self._sizes.max_num_tokens - _NUM_TEMPLATE_TOKENS)
            return {"messages": [{"role": "user", "content": content}]}
        return {"prompt_token_ids": list(text.encode())}

    def _text(self, num_bytes: int, pieces: Sequence[str]) -> str:
        """Return a text of so many bytes."""
        found = ""
        while (num_left := num_bytes - len(found.encode())) > 0:
            piece = self._random.choice(pieces)
            found += piece if len(piece.encode()) <= num_left else "e"
        return found

    def _moment(self) -> Moment:
        random = self._random
        return Moment(
            num_frames=random.choice((0, 0, 1, 2, 10)),
            delay_s=random.choice((0.0, 0.0, 0.002, 0.02, 0.1, 0.3)),
            is_after_end=random.random() < 0.2,
            from_index=random.choice((0, 1, 7, 50, -1)),
        )

    def _encoding(self) -> Encoding:
        return self._random.choice(("json", "msgpack"))


def _cut(text: str, num_bytes: int) -> str:
    """Return what fits of a text; never nothing."""
    return text.encode()[:num_bytes].decode(errors="ignore") or "x"


def _num_tokens(prompt: Request) -> int:
    """Return at most how many tokens a prompt has: a byte each, and the template's own."""
    if "messages" in prompt:
        return len(prompt["messages"][0]["content"].encode()) + _NUM_TEMPLATE_TOKENS
    return len(prompt.get("prompt_token_ids") or prompt["prompt"].encode())
