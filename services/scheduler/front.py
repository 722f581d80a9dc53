"""Where messages of clients arrive: admit or refuse at once, resume."""

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import replace

import msgspec
import structlog

from slipstream.services.scheduler.admission import Admission, AdmittedRequest
from slipstream.services.scheduler.answers import Answers, failed_from
from slipstream.services.scheduler.choice_desk import ChoiceDesk
from slipstream.services.scheduler.choices import choice_id
from slipstream.services.scheduler.desk import RETRY_AFTER_MS, Desk
from slipstream.services.scheduler.interest_watch import InterestWatch
from slipstream.services.scheduler.metrics import SchedulerMetrics
from slipstream.services.scheduler.prefix_watch import PrefixWatch
from slipstream.services.scheduler.records import RequestRecord
from slipstream.services.scheduler.registry_keeper import keep_registry, keep_registry_once
from slipstream.services.scheduler.relay import Relay
from slipstream.services.scheduler.shadow import Shadowed
from slipstream.services.scheduler.succession import ALONE, Succession
from slipstream.services.scheduler.watch import Watch
from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.subjects import DECODE, GENERATE, SUBMIT, is_inbox, subject_model
from slipstream.shared.errors import DeadlineTooShortError, OverloadedError, SlipstreamError
from slipstream.shared.ids import RequestId, new_request_id
from slipstream.shared.messages.codec import encode, encoding_of
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import MAX_CHOICES, Cancel, Cancelled, Resume
from slipstream.shared.messages.jobs import Encoding, ReplyTarget
from slipstream.shared.scheduling.door import TooLate
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.context import extract
from slipstream.shared.telemetry.spans import Span, SpanKind
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.deadline import Deadline

log = structlog.get_logger()

# A text of so many bytes is tokenized in less time than a thread takes to be asked.
_MAX_INLINE_BYTES = 2048


class Front:
    """Turns what clients send into records on the desk."""

    def __init__(
        self,
        bus: Bus,
        tracer: Tracer,
        model: str,
        admission: Admission,
        answers: Answers,
        desk: Desk,
        watch: Watch,
        metrics: SchedulerMetrics,
        relay: Relay,
        succession: Succession = ALONE,
    ) -> None:
        self._choices = ChoiceDesk(
            bus, tracer, answers, lambda request_id: desk.cancel(Cancel(request_id))
        )
        desk.on_closed = self._closed
        self._choices.on_settled = relay.ended
        self.relay = relay
        self._succession = succession
        self.desk = desk
        self.watch = watch
        self.interest = InterestWatch(bus, answers, desk.records, desk.cancel)
        self._prefixes = PrefixWatch(bus, desk.load.prefixes, desk.run, metrics.asked_for_prefixes)
        self.is_draining = False
        self._bus = bus
        self._tracer = tracer
        self._model = model
        self._admission = admission
        self._answers = answers
        self._metrics = metrics
        self._num_admitting = 0
        self._num_bytes_admitting = 0

    async def start(self) -> bool:
        """Listen for what comes back to us; tell whether there was no registry before."""
        await self._choices.start()
        await self.interest.start()
        await self._prefixes.start()
        return await keep_registry_once(self._bus)

    def loops(self) -> tuple[Coroutine[None, None, None], ...]:
        """Return what runs as long as the scheduler does; it ends only by failing."""
        return (
            self.desk.place_loop(),
            self.watch.tick_loop(),
            self.interest.loop(),
            self.relay.loop(),
            keep_registry(self._bus),
        )

    async def cancel(self, message: Cancel) -> Cancelled:
        """End a request with all of its choices. Idempotent."""
        request_ids = self._ids_of(message.request_id)
        if not request_ids:
            return await self.desk.cancel(message)
        each = (msgspec.structs.replace(message, request_id=one) for one in request_ids)
        answers = await asyncio.gather(*map(self.desk.cancel, each))
        phases = [answer.phase for answer in answers if answer.phase != "ended"]
        return Cancelled(request_id=message.request_id, phase=phases[0] if phases else "ended")

    async def generate(self, incoming: Incoming) -> Failed | None:
        """Admit a request, or answer at once why not; return what was answered."""
        if not is_inbox(incoming.reply):
            log.warning("request_without_inbox", subject=incoming.subject, reply=incoming.reply)
            return None
        opened = await self.open_request(incoming)
        if not isinstance(opened, Failed):
            return None
        await self._answers.refuse(incoming, opened)
        await self.relay.refused(incoming)
        return opened

    async def open_request(
        self, incoming: Incoming, *, is_submitted: bool = False
    ) -> RequestRecord | Failed:
        """Admit a request that is answered to its reply subject, or return why not."""
        root = self._tracer.start(
            names.SPAN_PROCESS_SUBMIT if is_submitted else names.SPAN_PROCESS_GENERATE,
            parent=extract(incoming.headers),
            kind=SpanKind.CONSUMER,
            attributes={
                names.MESSAGING_SYSTEM: names.MESSAGING_SYSTEM_NATS,
                names.MESSAGING_OPERATION_TYPE: names.OPERATION_PROCESS,
                names.MESSAGING_DESTINATION_TEMPLATE: (
                    SUBMIT.pattern if is_submitted else GENERATE.pattern
                ),
                names.MESSAGING_BODY_SIZE: len(incoming.payload),
                names.GEN_AI_REQUEST_MODEL: self._model,
            },
        )
        overload = self._overload(len(incoming.payload), root)
        opened = overload or await self._admit_counted(incoming, root, is_submitted=is_submitted)
        if isinstance(opened, Failed):
            root.end(opened.code, description=opened.message)
            log.info(
                "request_refused",
                code=opened.code,
                field=opened.field,
                trace_id=root.context.trace_id,
            )
            self._metrics.refused(opened.code)
        return opened

    def has_room(self, num_requests: int = 1, num_bytes: int = 0) -> bool:
        """Tell whether so many more would be admitted now."""
        return not self.is_draining and self.desk.load.queue.can_add(
            num_bytes + self._num_bytes_admitting, num_requests + self._num_admitting
        )

    def holds(self, request_id: RequestId) -> bool:
        """Tell whether an admitted request has no ending yet, as far as is known here."""
        return request_id in self.desk.records or bool(self._ids_of(request_id))

    async def reopen(
        self, entry: Shadowed, root: Span, attempt: int, ended: Collection[int]
    ) -> None:
        """Open a request again that another scheduler had admitted, but for choices that ended."""
        told, incoming = entry.admitted, entry.incoming
        assert told is not None, "it has been admitted"
        admitted = await asyncio.to_thread(
            self._admission.admit, incoming.payload, subject_model(incoming.subject)
        )
        sampling = msgspec.structs.replace(admitted.sampling, seed=told.seed)
        record = self._record(incoming, replace(admitted, sampling=sampling), root, incoming.reply)
        record.request_id = told.request_id
        record.attempt = attempt
        record.arrived_at = entry.arrived_at
        record.deadline = Deadline(entry.arrived_at + admitted.deadline_ms / 1000)
        await self._open(record, incoming, ended)

    def _ids_of(self, request_id: RequestId) -> list[RequestId]:
        """Return the ids of a request's choices, also of those that were taken over one by one."""
        if request_id in self.desk.records:
            return []
        ids = (choice_id(request_id, choice) for choice in range(MAX_CHOICES))
        return self._choices.ids_of(request_id) or [each for each in ids if self.desk.knows(each)]

    def _closed(self, record: RequestRecord, code: str | None) -> None:
        self._choices.closed(record, code)
        if code is None:
            self.relay.ended(record.request_id)
        else:
            # Nobody else may know of it.
            self.desk.run(self.relay.settled(record.request_id), record.log_fields)

    async def resume(self, message: Resume, encoding: Encoding) -> Failed | None:
        """Have a stream sent again: by its decode worker, or `Accepted` while it still waits."""
        if not is_inbox(message.reply):
            return Failed(code="invalid_request", field="reply", message="reply must be an inbox")
        if self._ids_of(message.request_id):
            wanted = choice_id(message.request_id, message.choice)
            message = msgspec.structs.replace(message, request_id=wanted)
        record = self.desk.records.get(message.request_id)
        # A worker that has not got it yet would say that there is no such stream.
        if record is not None and (record.phase != "decoding" or record.is_on_its_way):
            await self._answers.accept(record, message.reply)
            return None
        worker_id = self.desk.last_holder(message.request_id)
        if worker_id is None:
            return Failed(
                code="not_found",
                message="no such request here; ended ones are kept for a minute",
                request_id=message.request_id,
            )
        self.desk.run(self._forward(message, worker_id, encoding))
        return None

    async def _forward(self, message: Resume, worker_id: str, encoding: Encoding) -> None:
        message = msgspec.structs.replace(message, scheduler_epoch=self._succession.epoch)
        try:
            # It answers only if it can't: what can be resumed goes straight to the reader.
            await self._bus.publish(
                DECODE.subject(worker_id=worker_id),
                encode(message, encoding),
                reply=message.reply,
            )
        except SlipstreamError as error:
            log.warning("resume_not_forwarded", request_id=message.request_id, error=str(error))

    def _overload(self, num_bytes: int, root: Span) -> Failed | None:
        if self.is_draining:
            return self._draining(root)
        if not self.desk.load.queue.can_add(
            num_bytes + self._num_bytes_admitting, 1 + self._num_admitting
        ):
            return self._overloaded(root)
        return None

    def _draining(self, root: Span) -> Failed:
        return self._later("draining", "the scheduler is shutting down", root)

    def _overloaded(self, root: Span) -> Failed:
        num_waiting = len(self.desk.load.queue)
        message = f"{num_waiting} requests are waiting already"
        return self._later("overloaded", message, root, self.desk.load.retry_ms())

    def _later(
        self, code: str, message: str, root: Span, retry_after_ms: int = RETRY_AFTER_MS
    ) -> Failed:
        return Failed(
            code=code,
            message=message,
            retry_after_ms=retry_after_ms,
            trace_id=root.context.trace_id,
        )

    async def _admit_counted(
        self, incoming: Incoming, root: Span, *, is_submitted: bool
    ) -> RequestRecord | Failed:
        """Admit; those still being tokenized count, or a burst would all find the same room."""
        num_bytes = len(incoming.payload)
        self._num_admitting += 1
        self._num_bytes_admitting += num_bytes
        try:
            return await self._admit(incoming, root, is_submitted=is_submitted)
        finally:
            self._num_admitting -= 1
            self._num_bytes_admitting -= num_bytes

    async def _admit(
        self, incoming: Incoming, root: Span, *, is_submitted: bool
    ) -> RequestRecord | Failed:
        model = subject_model(incoming.subject)
        try:
            request = await self._read(incoming.payload, model, is_submitted=is_submitted)
        except SlipstreamError as error:
            return failed_from(error, root.context.trace_id)
        except Exception:
            log.exception("admission_failed")
            return Failed(
                code="internal_error",
                message="the request could not be read",
                trace_id=root.context.trace_id,
            )
        if self.is_draining:
            return self._draining(root)
        # Of `n` choices each counts; the request itself has been counted at the door.
        if request.num_choices > 1 and not self.desk.load.queue.can_add(
            request.num_bytes, request.num_choices
        ):
            return self._overloaded(root)
        if (late := self.desk.load.judge(request)) is not None:
            return failed_from(_error_of(late), root.context.trace_id)
        # The inbox of a submission is the scheduler's own: it need not ask itself.
        client_inbox = "" if is_submitted else incoming.reply
        record = self._record(incoming, request, root, client_inbox)
        await self._open(record, None if is_submitted else incoming)
        return record

    async def _read(
        self, payload: bytes, model: str | None, *, is_submitted: bool
    ) -> AdmittedRequest:
        """
        Decode, check, tokenize; raise before tokenizing for what would be served too late.

        Tokenizing a megabyte takes a while: only short requests are read on the event loop.
        """
        is_short = len(payload) <= _MAX_INLINE_BYTES
        read, finish = self._admission.read, self._admission.finish
        if is_short:
            request = read(payload, model, is_submitted=is_submitted)
        else:
            request = await asyncio.to_thread(read, payload, model, is_submitted=is_submitted)
        late = self.desk.load.judge_read(request, self._admission.deadline_ms(request))
        if late is not None:
            raise _error_of(late)
        if is_short and not self._admission.is_slow(request):
            return finish(request, len(payload))
        return await asyncio.to_thread(finish, request, len(payload))

    def _record(
        self, incoming: Incoming, request: AdmittedRequest, root: Span, client_inbox: str
    ) -> RequestRecord:
        return RequestRecord(
            request_id=new_request_id(),
            request=request,
            reply=ReplyTarget(
                subject=incoming.reply,
                encoding=encoding_of(incoming.payload),
                is_streamed=request.is_streamed,
                gateway_id=request.batch_inbox,
            ),
            root=root,
            client_inbox=client_inbox,
            deadline=Deadline.from_ms(request.deadline_ms),
        )

    async def _open(
        self,
        record: RequestRecord,
        incoming: Incoming | None,
        ended: Collection[int] = frozenset(),
    ) -> None:
        request, root = record.request, record.root
        root.set(names.MESSAGING_CONVERSATION_ID, record.request_id)
        root.set(names.GEN_AI_REQUEST_MAX_TOKENS, request.sampling.max_tokens)
        log.info(
            "request_admitted",
            **record.log_fields,
            num_prompt_tokens=len(request.prompt_token_ids),
            num_choices=request.num_choices,
        )
        if incoming is not None:
            await self.relay.admitted(record, incoming)
        # Before any frame can be on its way: the stream has one publisher at a time.
        await self._answers.accept(record)
        records = self._choices.open(record, ended) if request.num_choices > 1 else [record]
        for each in records:
            self.desk.open(each)


def _error_of(late: TooLate) -> SlipstreamError:
    if late.retry_after_ms is None:
        return DeadlineTooShortError(late.message)
    return OverloadedError(late.message, late.retry_after_ms)
