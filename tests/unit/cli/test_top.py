"""A running stack as its messages tell it, and how a moment of it looks."""

import io
from typing import Any

import pytest
from rich.console import Console

from slipstream.services.cli.top_model import GONE_S, SILENT_S, WINDOW_S, TopModel
from slipstream.services.cli.top_series import Recent, TallySeries
from slipstream.services.cli.top_snapshot import (
    HostRow,
    QueueRow,
    Snapshot,
    Times,
    WorkerRow,
)
from slipstream.services.cli.top_view import line_of, sparkline, view
from slipstream.services.cli.top_watch import TopWatch
from slipstream.shared.bus.discovery import Discovery, EndpointStats, Identity, Stats
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.memory_bus import MemoryBroker, MemoryBus
from slipstream.shared.bus.subjects import DECODE, EVENT, REPORT
from slipstream.shared.ids import HostId, RequestId, WorkerId
from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.common import Usage
from slipstream.shared.messages.reports import EndedSequence, KvEvent, WorkerReport


def report(role: Any = "decode", **fields: Any) -> WorkerReport:
    return WorkerReport(
        worker_id=WorkerId(f"{role}-a"),
        role=role,
        epoch=1,
        number=1,
        **{"num_seats": 8, "num_free_seats": 5, "host_id": HostId("h"), **fields},
    )


def stats(role: str, *, who: str = "a", **data: Any) -> Stats:
    endpoint = EndpointStats(
        name="x",
        subject="x",
        queue_group="",
        num_requests=0,
        num_errors=0,
        last_error="",
        processing_time=0,
        average_processing_time=0,
        data={f"slipstream_{name}": value for name, value in data.items()},
    )
    return Stats(
        name=f"slipstream-{role}",
        id=f"{role}-{who}",
        version="1.0.0",
        metadata={},
        started="",
        endpoints=[endpoint],
    )


def ended(request_id: str, ttft_ms: float, total_ms: float, num_tokens: int) -> EndedSequence:
    return EndedSequence(
        request_id=RequestId(request_id),
        attempt=1,
        finish_reason="stop",
        usage=Usage(num_prompt_tokens=1, num_output_tokens=num_tokens),
        ttft_ms=ttft_ms,
        total_ms=total_ms,
    )


def test_a_worker_is_shown_with_its_seats_and_requests() -> None:
    model = TopModel()
    requests = {"decode": {"waiting": 1, "prefilling": 2, "running": 3}}
    model.saw_report(report(), 1.0)
    model.saw_stats(stats("decode", requests=requests, output_tokens_total=100), 1.0)
    model.saw_stats(stats("decode", requests=requests, output_tokens_total=140), 3.0)
    model.saw_report(report(), 3.0)

    assert [
        WorkerRow(
            worker_id="decode-a",
            role="decode",
            host_id="h",
            state="ready",
            num_seats=8,
            num_held=3,
            num_waiting=1,
            num_prefilling=2,
            num_running=3,
            tokens_per_s=20.0,
        )
    ] == model.snapshot(3.0).workers


def test_a_worker_that_says_nothing_is_silent_and_then_forgotten() -> None:
    model = TopModel()
    model.saw_report(report(), 0.0)
    model.saw_stats(stats("decode"), 0.0)

    def states(now_s: float) -> list[str]:
        model.tick(now_s)
        return [each.state for each in model.snapshot(now_s).workers]

    assert [["ready"], ["silent"], []] == [
        states(now_s) for now_s in (SILENT_S / 2, SILENT_S + 0.1, GONE_S + 0.1)
    ]
    assert {} == model.snapshot(GONE_S + 0.1).services


def test_a_draining_worker_is_said_to_drain() -> None:
    model = TopModel()
    model.saw_report(report(is_draining=True), 0.0)

    assert ["draining"] == [each.state for each in model.snapshot(0.0).workers]


def test_times_are_those_of_requests_that_ended_each_once() -> None:
    model = TopModel()
    one, two = ended("r1", 100.0, 500.0, 5), ended("r2", 300.0, 300.0, 1)
    model.saw_report(report(ended=[one]), 1.0)
    model.tick(1.5)
    model.saw_report(report(ended=[one, two]), 2.0)
    model.tick(2.5)
    snapshot = model.snapshot(2.5)

    assert Times(p50=200.0, p95=300.0, history=[100.0, 300.0]) == snapshot.ttft_ms
    # A single token has no time per token after the first.
    assert Times(p50=100.0, p95=100.0, history=[100.0, None]) == snapshot.tpot_ms


def test_what_failed_or_was_handed_over_has_no_times() -> None:
    model = TopModel()
    failed = EndedSequence(request_id=RequestId("r"), attempt=1, code="worker_lost")
    model.saw_report(report(ended=[failed]), 1.0)

    assert model.snapshot(1.0).ttft_ms.p50 is None


def test_shares_are_of_what_was_counted_lately_over_all_services() -> None:
    model = TopModel()
    for who in ("a", "b"):
        for now_s, factor in ((0.0, 1), (5.0, 2)):
            drafts = {"tested": 10 * factor, "accepted": 6 * factor}
            model.saw_stats(
                stats(
                    "decode",
                    who=who,
                    draft_tokens_total=drafts,
                    prompt_tokens_total=100 * factor,
                    cached_tokens_total=25 * factor,
                    output_tokens_total=50 * factor,
                ),
                now_s,
            )
    snapshot = model.snapshot(5.0)

    assert (0.6, 0.25, 20.0) == (
        snapshot.draft_acceptance,
        snapshot.cache_hits,
        snapshot.tokens_per_s,
    )


def test_there_is_no_share_of_nothing() -> None:
    model = TopModel()
    model.saw_stats(stats("decode", prompt_tokens_total=100, cached_tokens_total=50), 0.0)

    assert (None, None) == (model.snapshot(0.0).cache_hits, model.snapshot(0.0).draft_acceptance)


def test_the_queue_is_that_of_all_schedulers_but_the_stream_is_one() -> None:
    model = TopModel()
    for who, age in (("a", 2.0), ("b", 7.0)):
        model.saw_stats(
            stats(
                "scheduler",
                who=who,
                requests={"scheduler": {"waiting": 3, "prefilling": 1, "running": 4}},
                queue_age_seconds=age,
                submissions={"waiting": 9},
                refused_total={"overloaded": 2, "invalid_request": 1},
            ),
            0.0,
        )

    assert (
        QueueRow(
            num_waiting=6,
            num_prefilling=2,
            num_running=8,
            oldest_s=7.0,
            num_submitted=9,
            num_refused=6,
        )
        == model.snapshot(0.0).queue
    )


def test_blocks_are_those_of_each_host_with_what_its_cache_takes_in() -> None:
    model = TopModel()
    model.saw_report(report("kv"), 10.0)
    blocks = {"free": 90, "leased": 10}
    model.saw_stats(stats("kv", kv_blocks=blocks, kv_pool_blocks=100), 10.0)
    model.saw_kv_event(KvEvent(HostId("h"), 1, 1, [b"1", b"2", b"3"], [b"4"]), 8.0)
    model.saw_kv_event(KvEvent(HostId("other"), 1, 1, [b"1"], []), 8.0)

    assert [
        HostRow(host_id="h", num_blocks=100, blocks=blocks, stored_per_s=1.5, removed_per_s=0.5)
    ] == model.snapshot(10.0).hosts
    model.saw_report(report("kv"), 8.5 + WINDOW_S)
    model.tick(8.5 + WINDOW_S)
    assert [0.0] == [each.stored_per_s for each in model.snapshot(8.5 + WINDOW_S).hosts]


def test_services_of_others_are_passed_over() -> None:
    model = TopModel()
    model.saw_stats(
        Stats(name="weather", id="x", version="1.0.0", metadata={}, started="", endpoints=[]), 0.0
    )

    assert {} == model.snapshot(0.0).services


def test_a_counter_that_begins_anew_never_counts_backwards() -> None:
    series = TallySeries(WINDOW_S)
    series.add(0.0, {"n": 100})
    series.add(4.0, {"n": 20})

    assert (0.0, 0.0) == (series.rate("n"), series.grown("n"))


def test_a_rate_is_that_of_the_last_seconds() -> None:
    series = TallySeries(WINDOW_S)
    for second in range(10):
        series.add(float(second), {"n": 10 * second if second < 6 else 50 + 100 * (second - 5)})

    assert 100.0 == series.rate("n")


def test_percentiles_forget_what_is_old() -> None:
    recent = Recent(window_s=10.0, num_kept=3)
    recent.add(0.0, 1000.0)
    recent.tick(1.0)
    recent.add(12.0, 10.0)
    recent.tick(12.0)

    assert (10.0, 10.0) == recent.percentiles()
    assert [1000.0, 10.0] == list(recent.history)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([], ""),
        ([0.0, 0.0], "▁▁"),
        ([1.0, 2.0, 4.0, 8.0], "▂▃▅█"),
        ([8.0, None, 8.0], "█ █"),
    ],
)
def test_a_sparkline_is_as_high_as_its_highest(values: list[float | None], shown: str) -> None:
    assert shown == sparkline(values)


def test_a_sparkline_shows_the_last_values() -> None:
    assert "▅█" == sparkline([99.0, 1.0, 2.0], num_shown=2)


SNAPSHOT = Snapshot(
    services={"decode": 1, "kv": 1},
    workers=[
        WorkerRow(
            worker_id="decode-a",
            role="decode",
            host_id="h",
            state="draining",
            num_seats=8,
            num_held=3,
            num_running=2,
            tokens_per_s=1234.5,
        )
    ],
    queue=QueueRow(num_waiting=7, oldest_s=1.5),
    hosts=[HostRow(host_id="h", num_blocks=100, blocks={"leased": 25, "free": 75})],
    tokens_per_s=1234.5,
    tokens_history=[0.0, 1234.5],
    ttft_ms=Times(p50=90.0, p95=120.0, history=[90.0]),
    draft_acceptance=0.63,
)


def drawn(snapshot: Snapshot, width: int) -> str:
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(view(snapshot, "nats://x"))
    return console.export_text()


def test_everything_is_shown() -> None:
    shown = drawn(SNAPSHOT, 110)

    for words in (
        *("1 decode, 1 kv", "decode-a", "draining", "1,234.5 ▁█", "90.0 p50 120.0 p95"),
        *("the oldest 1.5 s", "63%", "100 blocks", "leased 25", "free 75"),
    ):
        assert words in shown
    assert "█" * 40 in shown
    assert "█" * 41 not in shown


@pytest.mark.parametrize("width", [40, 80, 250])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(len(line) for line in drawn(SNAPSHOT, width).splitlines()) <= width


def test_nobody_there_is_said() -> None:
    assert "nobody answers at nats://x" in drawn(Snapshot(services={}), 80)


def test_a_log_has_it_in_one_line() -> None:
    assert (
        "1 workers, 7 waiting, 0 prefilling, 0 running, 1234.5 tokens/s, "
        "TTFT 90.0 p50 120.0 p95 ms, TPOT - ms, drafts 63%, cached -"
    ) == line_of(SNAPSHOT)


async def test_the_model_is_fed_from_the_bus() -> None:
    broker, clock = MemoryBroker(), [0.0]
    service = MemoryBus(broker)

    async def answer(*_anything: object) -> None: ...

    await serve(service, DECODE.subject(worker_id="decode-a"), DECODE, answer)
    who = Identity(name="slipstream-decode", id="decode-a", version="1.0.0")
    await Discovery(service, who, lambda: {"slipstream_output_tokens_total": 5}).start()
    watch = TopWatch(MemoryBus(broker), lambda: clock[0])
    await watch.start()
    await service.publish(REPORT.subject(worker_id="decode-a"), encode(report()))
    event = KvEvent(HostId("h"), 1, 1, [b"1"], [])
    await service.publish(EVENT.subject(role="kv"), encode(event))
    await service.publish(watch._inbox, b'{"type": "of somebody else"}')
    await service.flush()
    snapshot = await anext(watch.snapshots(0.01))

    assert ({"decode": 1}, ["decode-a"]) == (
        snapshot.services,
        [each.worker_id for each in snapshot.workers],
    )
    assert 1 == len(watch.model._changes)
