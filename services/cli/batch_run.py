"""Serve the lines of a batch through the durable entrance, so many at a time."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from slipstream.services.cli.batch_input import InputFile, InputLine
from slipstream.services.cli.batch_output import OutputFile
from slipstream.shared.bus.durable import Durable, StorageError, TooLargeToStoreError
from slipstream.shared.client import submissions
from slipstream.shared.client.answers import RequestFailedError
from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Completion, GenerateRequest
from slipstream.shared.messages.submission import key_of
from slipstream.shared.openai.batch_lines import (
    Row,
    answer_row,
    bad_row,
    digest_of,
    failed_row,
    parse_line,
)

T = TypeVar("T")

_TROUBLE_S = 60.0  # what storage may be away for once it has been there
_REST_S = 1.0


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """How much at once, and for how long."""

    num_in_flight: int = 32
    wait_s: float = 86_400.0  # for all answers together
    run: str = ""  # part of every request's key: another run is computed anew
    trouble_s: float = _TROUBLE_S
    rest_s: float = _REST_S


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a batch."""

    num_lines: int
    num_answered: int = 0
    num_failed: int = 0
    num_unanswered: int = 0
    num_found: int = 0  # of the answered and failed, those of earlier runs


class BatchRun:
    """One run over the lines that have no row yet; `counts` is told of each new row."""

    def __init__(
        self,
        durable: Durable,
        source: InputFile,
        output: OutputFile,
        limits: BatchLimits,
        on_row: Callable[[Summary], None] = lambda _summary: None,
    ) -> None:
        self._durable = durable
        self._source = source
        self._output = output
        self._limits = limits
        self._on_row = on_row
        self._give_up_at = time.monotonic() + limits.wait_s
        self._has_stored = False
        self._rows = Counter(output.found.values())  # of answers and of errors

    @property
    def summary(self) -> Summary:
        """How far it is."""
        num_lines, num_rows = len(self._source.lines), self._rows.total()
        return Summary(
            num_lines=num_lines,
            num_answered=self._rows[True],
            num_failed=self._rows[False],
            num_unanswered=num_lines - num_rows,
            num_found=len(self._output.found),
        )

    async def run(self) -> Summary:
        """Return when every line has a row, or the time is over. Raises StorageError."""
        left = iter([each for each in self._source.lines if each.name not in self._output.found])
        takers = [asyncio.create_task(self._serve(left)) for _ in range(self._limits.num_in_flight)]
        try:
            await asyncio.gather(*takers)
        finally:
            await cancel_all(takers)
        return self.summary

    async def _serve(self, left: Iterator[InputLine]) -> None:
        for line in left:
            row = await self._row_of(line)
            if row is None:
                continue  # what is answered of the others is still fetched
            await self._output.append(row)
            self._rows[row.is_answer] += 1
            self._on_row(self.summary)

    async def _row_of(self, line: InputLine) -> Row | None:
        """Return the row of a line, None when there is no answer in time."""
        content = self._source.read(line)
        try:
            endpoint, request = parse_line(content)
        except InvalidRequestError as error:
            return bad_row(line.row_id, line.custom_id, line.number, error)
        key = f"batch-{digest_of(content, self._limits.run)}"
        try:
            completion = await self._answer(msgspec.structs.replace(request, request_key=key))
        except RequestFailedError as error:
            return failed_row(line.row_id, line.custom_id, error.failed)
        except TooLargeToStoreError as error:
            failed = Failed(code=error.code, message=str(error), limit=error.limit)
            return failed_row(line.row_id, line.custom_id, failed)
        if completion is None:
            return None
        created = int(time.time())
        return answer_row(line.row_id, line.custom_id, endpoint, completion, created)

    async def _answer(self, request: GenerateRequest) -> Completion | None:
        durable, key = self._durable, key_of(request, 0)
        # An earlier run may have submitted it; what is answered need not be queued again.
        found = await self._patiently(lambda: submissions.fetch(durable, key, 0.0))
        if found is not None or time.monotonic() >= self._give_up_at:
            return found
        await self._patiently(lambda: submissions.submit(durable, request))
        self._has_stored = True
        return await self._patiently(
            lambda: submissions.fetch(durable, key, self._give_up_at - time.monotonic())
        )

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Try again while storage is away that has been there, as when NATS is started again."""
        give_up_at = time.monotonic() + self._limits.trouble_s
        while True:
            try:
                return await call()
            except TooLargeToStoreError:
                raise
            except StorageError:
                if not self._has_stored or time.monotonic() >= give_up_at:
                    raise
                await asyncio.sleep(self._limits.rest_s)
