"""Requests that decode together, with and without drafts, and what became of each."""

import asyncio
from collections.abc import Sequence

from slipstream.shared.bus.bus import Bus
from slipstream.shared.client.answers import Answer, complete
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.messages.generate import GenerateRequest

_ANSWER_S = 300.0


class WrongTokensError(SlipstreamError):
    """Speculation changed an answer."""

    code = "wrong_tokens"


class ShortAnswerError(SlipstreamError):
    """An answer ended before it had all the tokens that were asked for."""

    code = "short_answer"


async def ask_together(bus: Bus, requests: Sequence[GenerateRequest]) -> list[Answer]:
    """
    Send requests at once and return their answers, each as long as it was asked to be.

    They come in one piece: a client that reads streams would take of the cores what it measures.
    Raises RequestFailedError, ShortAnswerError.
    """
    answers = await asyncio.gather(
        *(complete(bus, request, timeout_s=_ANSWER_S) for request in requests)
    )
    for request, answer in zip(requests, answers, strict=True):
        if len(answer.token_ids) != request.max_tokens:
            raise ShortAnswerError(
                f"an answer ended after {len(answer.token_ids)} of {request.max_tokens} tokens "
                f"({answer.finish_reason}): take a smaller --output"
            )
    return answers


def decode_ms(answer: Answer) -> float:
    """Return the time from its first token to its last, by the worker's clock."""
    assert answer.timings.tpot_ms is not None, "an answer has several tokens"
    return answer.timings.tpot_ms * (len(answer.token_ids) - 1)


def check_tokens(what: str, found: Sequence[int], expected: Sequence[int]) -> None:
    """Raise WrongTokensError where an answer is not, token by token, what it has to be."""
    assert len(found) == len(expected), "all answers have the same length"
    for position, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one != other:
            raise WrongTokensError(
                f"{what}: token {one} at output position {position}, and {other} in the first "
                "answer without speculation; the same tokens have to come on every path"
            )
