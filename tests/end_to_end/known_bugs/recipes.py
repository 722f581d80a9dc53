"""
Recipes R1 to R6 of the known bugs: tests calibrate themselves on whatever model is loaded.

R1 `baseline`, R2 `split_stop`, R3 `forced`, R4 `held` and `check_recovered`, R5 the arguments of
`conftest.py`, R6 `alone` and `together`.
"""

import asyncio
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.end_to_end import client

Request = dict[str, Any]  # Any: fields of a request, right and wrong ones
Decode = Callable[[Sequence[int]], str]

_HELLO = {"prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
_HELLO_S = 30.0  # normal is a hundredth of it: a machine under load is no bug
_HELD = ("num_leases", "num_leased", "num_committed", "num_quarantined")


@dataclass(frozen=True)
class Baseline:
    """R1: what a greedy request says, whole and token by token."""

    text: str
    token_ids: list[int]
    pieces: list[str]
    answer: client.Answer


async def baseline(asking: client.Client, decode: Decode, request: Request) -> Baseline:
    """Ask greedily, with logprobs, in one message."""
    answer = await asking.ask({**request, "temperature": 0, "logprobs": 1, "stream": False})
    token_ids = client.token_ids_of(answer)
    return Baseline(client.text_of(answer), token_ids, pieces_of(token_ids, decode), answer)


def pieces_of(token_ids: Sequence[int], decode: Decode) -> list[str]:
    """Return the text that each token adds."""
    texts = [decode(token_ids[:count]) for count in range(len(token_ids) + 1)]
    return [after[len(before) :] for before, after in itertools.pairwise(texts)]


def split_stop(known: Baseline, num_tokens: int, *, first: int = 2) -> str:
    """
    R2: the end of a token, whole tokens, the beginning of another: `num_tokens` in all.

    The first of those from token `first` on that occurs nowhere earlier in the text.
    """
    for start in range(first, len(known.pieces) - num_tokens):
        chosen = known.pieces[start : start + num_tokens]
        stop = chosen[0][-1:] + "".join(chosen[1:-1]) + chosen[-1][: max(1, len(chosen[-1]) // 2)]
        at = len("".join(known.pieces[:start])) + len(chosen[0]) - 1
        if all(chosen) and known.text.find(stop) == at:
            return stop
    raise AssertionError(f"no stop string of {num_tokens} tokens in {known.pieces}")


def cut(text: str, stop: str) -> str:
    """Return the text before the first occurrence of a stop string."""
    assert stop in text, f"{stop!r} does not occur"
    return text[: text.index(stop)]


def certain(text: str, stop: str) -> str:
    """Return the text without the suffix that may still become the stop string."""
    lengths = range(min(len(stop) - 1, len(text)), 0, -1)
    num_held = next((length for length in lengths if text.endswith(stop[:length])), 0)
    return text[: len(text) - num_held]


def forced(token_id: int, max_tokens: int) -> Request:
    """R3: the fields that make any model say one token for ever."""
    return {
        "logit_bias": {str(token_id): 100},
        "temperature": 0,
        "max_tokens": max_tokens,
        "ignore_eos": True,
    }


async def held(asking: client.Client, role: str) -> int:
    """R4: how many sequences a worker of the role says that it holds."""
    return len((await asking.report_of(role)).held)


async def until(asking: client.Client, role: str, num_held: int, timeout_s: float = 30.0) -> None:
    """Wait until a worker's reports say that it holds at least so many; 0 waits for none."""
    async with asyncio.timeout(timeout_s):
        while True:
            now = await held(asking, role)
            if now == 0 if num_held == 0 else now >= num_held:
                return


async def check_recovered(asking: client.Client) -> None:
    """After every case: a plain hello is answered, and nobody holds a block."""
    answer = await asking.ask(_HELLO, timeout_s=_HELLO_S)
    assert 4 == len(client.token_ids_of(answer))
    books = await asking.idle_audit()
    assert [] == books.get("problems", [])
    assert dict.fromkeys(_HELD, 0) == {name: books[name] for name in _HELD}
    assert books["num_blocks"] == books["num_free"] + books["num_cached"] + books["num_granted"]


async def alone(asking: client.Client, requests: Sequence[Request]) -> list[client.Answer]:
    """R6, first half: one after another."""
    return [await asking.ask(request) for request in requests]


async def together(
    asking: client.Client, requests: Sequence[Request], timeout_s: float = client.ANSWER_S
) -> list[client.Answer]:
    """R6, second half: all at once."""
    return await asyncio.gather(*(asking.ask(each, timeout_s=timeout_s) for each in requests))


def said(answers: Sequence[client.Answer]) -> list[tuple[list[int], str]]:
    """Return tokens and text of each answer: what must not change."""
    return [(client.token_ids_of(answer), client.text_of(answer)) for answer in answers]


def peak_kib(pid: int) -> int:
    """Return the most memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    assert found is not None, "Linux says so"
    return int(found[1])


async def check_refused(
    asking: client.Client, request: client.Body, field: str | None, code: str = "invalid_request"
) -> client.Answer:
    """Have a request refused by its field's name, at once; return the answer."""
    failed = await asking.ask(request, timeout_s=_HELLO_S)
    assert "failed" == failed["type"], (request, failed)
    assert (code, field) == (failed["code"], failed.get("field")), (request, failed)
    assert failed["message"]
    return failed
