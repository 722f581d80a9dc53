"""
Requests on their way, as reports tell of them, and the gateway's own answers. Pure.

Reports of two workers may pass each other, and an ending is told in several: a request only ever
moves forward within an attempt, and has one end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.services.gateway.journeys import public_name
from slipstream.services.gateway.pipeline_views import (
    LIVE_STAGES,
    RequestView,
    Stage,
    TimesView,
)
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.common import Accepted, Timings, Usage
from slipstream.shared.messages.generate import Finished
from slipstream.shared.messages.reports import EndedSequence, HeldSequence, WorkerReport

MAX_NUM_REQUESTS = 48
_MAX_NUM_KNOWN = 4096  # of requests that have ended: reports repeat themselves
_GONE_S = 3.0  # without a word about it
_ENDS: dict[str, Stage] = {"abort": "cancelled", "cancelled": "cancelled"}

# Which worker sent how many tokens.
OnTokens = Callable[[str, int, float], None]


@dataclass(eq=False)
class _Request:
    name: str
    began_s: float
    heard_s: float
    stage: Stage = "queued"
    marks: list[tuple[Stage, float]] = field(default_factory=list)  # when it came to each
    attempt: int = 0
    client_id: str | None = None
    is_own: bool = False  # of this gateway, which will hear its end
    prefill_worker: str | None = None
    decode_worker: str | None = None
    num_prompt_tokens: int | None = None
    num_tokens: int = 0
    usage: Usage | None = None
    times: TimesView | None = None
    reason: str | None = None
    version: int = 0

    @property
    def is_live(self) -> bool:
        return self.stage in LIVE_STAGES


class Requests:
    """Those that run, as many as are shown, and the last ones that have ended."""

    def __init__(self, on_tokens: OnTokens = lambda *_: None) -> None:
        self.version = 0
        self._on_tokens = on_tokens
        self._requests: dict[RequestId, _Request] = {}
        self._known_ends: dict[RequestId, None] = {}

    def accepted(
        self, accepted: Accepted, client_id: str | None, asked_s: float, now_s: float
    ) -> None:
        """Show a request that this gateway has asked for."""
        request = self._get(accepted.request_id, now_s)
        if request is None:
            return
        request.began_s = min(asked_s, request.began_s)
        request.is_own = True
        request.client_id = client_id
        request.num_prompt_tokens = accepted.num_prompt_tokens
        self._changed(request)

    def finished(self, finished: Finished, now_s: float) -> None:
        """End a request of this gateway with the times that its answer tells."""
        request = self._requests.get(finished.request_id)
        if request is None:
            return
        # The report of its end may have been first, but knows less.
        request.times = _times(finished.timings)
        request.usage = finished.usage
        request.num_tokens = finished.usage.num_output_tokens
        end = _ENDS.get(finished.finish_reason, "finished")
        self._end(finished.request_id, request, end, finished.finish_reason, now_s)

    def left(self, request_id: RequestId, now_s: float) -> None:
        """End a request of this gateway that nobody reads any more."""
        request = self._requests.get(request_id)
        if request is not None and request.is_live:
            self._end(request_id, request, "cancelled", "cancelled", now_s)

    def report(self, report: WorkerReport, now_s: float) -> None:
        """Take in what a prefill or decode worker holds, and what it has let go of."""
        for held in report.held:
            request = self._get(held.request_id, now_s)
            if request is not None and held.attempt >= request.attempt:
                self._hold(request, held, report, now_s)
        for ended in report.ended:
            request = self._get(ended.request_id, now_s)
            if request is not None and request.is_live and ended.attempt >= request.attempt:
                self._let_go(request, ended, report, now_s)

    def views(self, since: int, now_s: float) -> list[RequestView]:
        """Return those that have changed since a version; all since -1."""
        for request_id, request in self._requests.items():
            is_silent = now_s - request.heard_s > _GONE_S and not request.is_own
            if request.is_live and is_silent:
                self._end(request_id, request, "gone", request.reason, now_s)
        return [_view(each) for each in self._requests.values() if each.version > since]

    def _get(self, request_id: RequestId, now_s: float) -> _Request | None:
        """Return a request, a new one where it is not known; None where there is no room."""
        request = self._requests.get(request_id)
        if request is None:
            if request_id in self._known_ends or not self._make_room():
                return None
            request = _Request(public_name(request_id), now_s, now_s)
            self._requests[request_id] = request
            self._move(request, "queued", now_s)
        request.heard_s = now_s
        return request

    def _make_room(self) -> bool:
        if len(self._requests) < MAX_NUM_REQUESTS:
            return True
        ended = next((key for key, each in self._requests.items() if not each.is_live), None)
        if ended is None:
            return False
        del self._requests[ended]
        return True

    def _hold(
        self, request: _Request, held: HeldSequence, report: WorkerReport, now_s: float
    ) -> None:
        if held.attempt > request.attempt:
            # Another worker goes on with it, from the prompt and what was said.
            request.attempt = held.attempt
            request.stage = "queued"
            self._changed(request)
        if not request.is_live:
            return
        if report.role == "prefill":
            request.prefill_worker = report.worker_id
        else:
            request.decode_worker = report.worker_id
        self._tokens(request, held.next_index, report.worker_id, now_s)
        self._advance(request, _stage_of(held, report), now_s)

    def _tokens(self, request: _Request, num_tokens: int, worker_id: str, now_s: float) -> None:
        if num_tokens > request.num_tokens:
            self._on_tokens(worker_id, num_tokens - request.num_tokens, now_s)
            request.num_tokens = num_tokens
            self._changed(request)

    def _let_go(
        self, request: _Request, ended: EndedSequence, report: WorkerReport, now_s: float
    ) -> None:
        if ended.finish_reason is not None:
            if ended.usage is not None:
                request.usage = ended.usage
                request.num_prompt_tokens = ended.usage.num_prompt_tokens
                self._tokens(request, ended.usage.num_output_tokens, report.worker_id, now_s)
            request.decode_worker = report.worker_id
            request.times = TimesView(
                queue_ms=None,
                prefill_ms=None,
                hand_over_ms=None,
                ttft_ms=_rounded(ended.ttft_ms),
                total_ms=_rounded(ended.total_ms),
            )
            end = _ENDS.get(ended.finish_reason, "finished")
            self._end(ended.request_id, request, end, ended.finish_reason, now_s)
        elif ended.was_answered or ended.code == "cancelled":
            end = _ENDS.get(ended.code or "", "failed")
            self._end(ended.request_id, request, end, ended.code, now_s)
        elif ended.code is None and report.role == "prefill":
            self._advance(request, "handing_over", now_s)
        else:
            request.reason = ended.code  # until another attempt is placed

    def _advance(self, request: _Request, stage: Stage, now_s: float) -> None:
        if LIVE_STAGES.index(stage) > LIVE_STAGES.index(request.stage):
            self._move(request, stage, now_s)

    def _end(
        self, request_id: RequestId, request: _Request, end: Stage, reason: str | None, now_s: float
    ) -> None:
        request.reason = reason
        if request.is_live:
            self._move(request, end, now_s)
        self._changed(request)
        self._known_ends[request_id] = None
        if len(self._known_ends) > _MAX_NUM_KNOWN:
            del self._known_ends[next(iter(self._known_ends))]

    def _move(self, request: _Request, stage: Stage, now_s: float) -> None:
        request.stage = stage
        request.marks.append((stage, now_s))
        self._changed(request)

    def _changed(self, request: _Request) -> None:
        self.version += 1
        request.version = self.version


def _stage_of(held: HeldSequence, report: WorkerReport) -> Stage:
    """Return where a request is: a decode worker names the phase in which it took it."""
    if report.role == "decode" and held.next_index > 0:
        return "decoding"
    if held.phase == "decoding":
        return "handing_over"  # its first token has not been sent yet
    return held.phase if held.phase in ("prefilling", "handing_over") else "queued"


def _view(request: _Request) -> RequestView:
    usage = request.usage
    return RequestView(
        name=request.name,
        stage=request.stage,
        began_ms=_rounded(request.began_s * 1000),
        marks=[(stage, _rounded((at_s - request.began_s) * 1000)) for stage, at_s in request.marks],
        attempt=request.attempt,
        client_id=request.client_id,
        prefill_worker=request.prefill_worker,
        decode_worker=request.decode_worker,
        num_prompt_tokens=request.num_prompt_tokens,
        num_tokens=request.num_tokens,
        num_cached_tokens=usage.num_cached_tokens if usage is not None else None,
        num_drafted_tokens=usage.num_drafted_tokens if usage is not None else None,
        num_accepted_tokens=usage.num_accepted_tokens if usage is not None else None,
        times=request.times,
        reason=request.reason,
    )


def _times(timings: Timings) -> TimesView:
    return TimesView(
        queue_ms=_rounded(timings.queue_ms),
        prefill_ms=_rounded(timings.prefill_ms),
        hand_over_ms=_rounded(timings.hand_over_ms),
        ttft_ms=_rounded(timings.ttft_ms),
        total_ms=_rounded(timings.total_ms),
    )


def _rounded(milliseconds: float) -> float:
    return round(milliseconds, 1)
