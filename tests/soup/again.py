"""What was answered in the soup, asked for once more where nobody else is."""

from collections.abc import Sequence
from dataclasses import replace

from tests.end_to_end import client
from tests.end_to_end.client import Answer

from .orders import Order
from .serving import Served, Table

# Ids, times, and which way an answer took; of the counts only those of tokens are the answer's.
_DIFFERENT = {"request_id", "trace_id", "attempt", "timings", "route", "route_reason"}
_COUNTS = ("num_prompt_tokens", "num_output_tokens")


async def compare_alone(
    asking: client.Client, served: Sequence[Served], seed: int, num_most: int | None = None
) -> int:
    """Ask for what was answered in full, one after another; return how many were compared."""
    whole = [each for each in served if _is_whole(each)][:num_most]
    table = Table(asking, seed, num_together=1)
    await table.serve([_repeated(each) for each in whole])
    await table.close()
    for first, again in zip(whole, table.served, strict=True):
        where = f"seed {seed}, {first.order}"
        assert _told(first) == _told(again), where
    return len(whole)


def _is_whole(served: Served) -> bool:
    """Every choice was answered to its end."""
    if served.order.error is not None or not served.endings:
        return False
    endings = [each for ending in served.endings for each in ending.get("choices", [ending])]
    return all(each.get("finish_reason", "abort") != "abort" for each in endings)


def _repeated(served: Served) -> Order:
    """Return the order under the seed that it got, with all the time that it needs."""
    body = served.order.body
    assert isinstance(body, dict), "only a right one is answered"
    seed = next(each["seed"] for each in served.messages if "seed" in each)
    return replace(served.order, fate="stay", body={**body, "seed": seed, "deadline_ms": None})


def _told(served: Served) -> list[object]:
    """Return all that an answer says which must not change."""
    if not served.order.is_streamed:
        return [_stripped(each) for each in served.messages]
    streams = map(served.of_choice, range(served.num_choices))
    return [_stripped(served.messages[0]), *map(_joined, streams)]


def _joined(stream: client.Stream) -> list[object]:
    logprobs = {
        frame["index"] + position: each
        for frame in stream.frames
        for position, each in enumerate(frame.get("logprobs") or ())
    }
    return [stream.token_ids, stream.text, logprobs, *map(_stripped, stream.endings)]


def _stripped(answer: Answer) -> Answer:
    kept = {name: value for name, value in answer.items() if name not in _DIFFERENT}
    if "usage" in kept:
        kept["usage"] = [kept["usage"][name] for name in _COUNTS]
    return kept
