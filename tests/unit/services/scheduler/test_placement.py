"""Where a request runs, and why: as a table."""

import pytest

from slipstream.services.scheduler.placement import WorkerView, choose
from slipstream.shared.ids import HostId, WorkerId
from slipstream.shared.messages.common import Route


def view(worker_id: str, *, host: str = "h", seats: int = 1, load: int = 0) -> WorkerView:
    return WorkerView(WorkerId(worker_id), HostId(host), seats, load)


D, P = [view("d")], [view("p")]


@pytest.mark.parametrize(
    ("route", "num_tokens", "prefill", "expected"),
    [
        ("remote", 1, P, ("remote", "p", "asked_for_remote")),
        ("remote", 1, [], ("local", None, "no_prefill_worker")),
        ("remote", 1, [view("p", host="other")], ("local", None, "no_prefill_worker")),
        ("remote", 1, [view("p", seats=0)], ("local", None, "no_prefill_worker")),
        ("local", 999, P, ("local", None, "asked_for_local")),
        ("auto", 64, P, ("remote", "p", "long_prompt")),
        ("auto", 63, P, ("local", None, "short_prompt")),
        ("auto", 999, [], ("local", None, "no_prefill_worker")),
    ],
)
def test_route_and_reason(
    route: Route, num_tokens: int, prefill: list[WorkerView], expected: tuple[str, str, str]
) -> None:
    choice = choose(route, num_tokens, 64, D, prefill)

    assert choice is not None
    assert ("d", *expected) == (
        choice.decode_worker_id,
        choice.route,
        choice.prefill_worker_id,
        choice.reason,
    )


@pytest.mark.parametrize("decode", [[], [view("d", seats=0)], [view("d", seats=-1)]])
def test_without_a_free_decode_seat_nobody_is_chosen(decode: list[WorkerView]) -> None:
    assert choose("remote", 1, 64, decode, P) is None


def test_the_least_loaded_worker_is_chosen_and_ties_are_settled() -> None:
    workers = [view("c", load=2), view("b", load=1), view("a", load=1)]
    choice = choose("local", 1, 64, workers, [])

    assert choice is not None
    assert "a" == choice.decode_worker_id


def test_more_free_blocks_settle_a_tie() -> None:
    workers = [
        WorkerView(WorkerId("a"), HostId("h"), 1, 0, num_free_blocks=5),
        WorkerView(WorkerId("b"), HostId("i"), 1, 0, num_free_blocks=9),
    ]
    choice = choose("local", 1, 64, workers, [])

    assert choice is not None
    assert ("b", "i") == (choice.decode_worker_id, choice.host_id)


def test_who_failed_the_request_is_taken_only_if_there_is_no_other() -> None:
    avoid = {WorkerId("d"), WorkerId("p")}
    others = choose("remote", 1, 64, [*D, view("e", load=9)], [*P, view("q", load=9)], avoid)
    alone = choose("remote", 1, 64, D, P, avoid)

    assert others is not None
    assert alone is not None
    assert ("e", "q") == (others.decode_worker_id, others.prefill_worker_id)
    assert ("d", "p") == (alone.decode_worker_id, alone.prefill_worker_id)


@pytest.mark.parametrize("route", ["auto", "remote", "local"])
def test_logprobs_of_the_prompt_are_made_where_the_stream_is(route: Route) -> None:
    choice = choose(route, 999, 64, D, P, wants_prompt_logprobs=True)

    assert choice is not None
    assert (None, "local", "prompt_logprobs") == (
        choice.prefill_worker_id,
        choice.route,
        choice.reason,
    )
