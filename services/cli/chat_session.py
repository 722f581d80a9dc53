"""The turns of a chat on a running stack."""

import contextlib
from collections.abc import Callable

import msgspec

from slipstream.services.cli.answer_printer import print_pieces
from slipstream.services.cli.chat_history import ChatHistory
from slipstream.services.cli.prompt_options import SamplingOptions
from slipstream.services.cli.workers import records_of
from slipstream.shared.bus.bus import Bus
from slipstream.shared.client.answers import Answer, AnswerStream, RequestFailedError
from slipstream.shared.errors import ContextLengthError, SlipstreamError
from slipstream.shared.messages.generate import GenerateRequest

_USUAL_ANSWER = 256  # tokens, where nobody has said how long it may be


class ChatSession:
    """Asks question after question; what is answered becomes part of the next prompt."""

    def __init__(
        self,
        bus: Bus,
        history: ChatHistory,
        sampling: SamplingOptions,
        timeout_s: float,
        write: Callable[[str], None],
        notice: Callable[[str], None],
    ) -> None:
        """`write` is given the text of answers, `notice` what there is to say beside them."""
        self._bus = bus
        self._history = history
        self._sampling = sampling
        self._timeout_s = timeout_s
        self._write = write
        self._notice = notice
        self.model = ""
        self.context_length: int | None = None

    async def look(self) -> None:
        """Find out which model answers, and how much it takes in, as far as a worker says."""
        with contextlib.suppress(SlipstreamError):  # only a hint, which not every server keeps
            for record in await records_of(self._bus):
                if record.role == "decode" and record.max_context_length:
                    self.model = record.model
                    self.context_length = record.max_context_length

    async def ask(self, question: str) -> Answer:
        """Have a question answered. What fails or is cancelled leaves the history as it was."""
        if self.context_length is None:
            # There may not have been a worker yet; without one nothing is dropped ahead.
            await self.look()
        room = self._sampling.max_tokens or _USUAL_ANSWER
        if self.context_length is not None:
            num = self._history.make_room(question, room, self.context_length)
            self._tell_of(num)
        answer = await self._answer(question)
        self._history.add(question, answer.text, answer.usage)
        return answer

    async def _answer(self, question: str) -> Answer:
        while True:
            try:
                return await print_pieces(
                    AnswerStream(self._bus, self._request(question), timeout_s=self._timeout_s),
                    self._write,
                )
            except RequestFailedError as error:
                # Lengths are estimates; the scheduler has counted.
                if error.code != ContextLengthError.code or not self._history.drop_oldest():
                    raise
                self._tell_of(1)

    def _request(self, question: str) -> GenerateRequest:
        return msgspec.structs.replace(
            self._sampling.sampled(),
            messages=self._history.messages(question),
            stream=True,
            deadline_ms=int(self._timeout_s * 1000),
        )

    def _tell_of(self, num_dropped: int) -> None:
        if num_dropped:
            turns = "turn is" if num_dropped == 1 else f"{num_dropped} turns are"
            self._notice(f"the context is full: the oldest {turns} forgotten")


def figures(answer: Answer) -> str:
    """Return in one line how fast an answer came."""
    tpot_ms = answer.timings.tpot_ms
    parts = [f"{answer.usage.num_output_tokens} tokens"]
    if tpot_ms:
        parts.append(f"{1000 / tpot_ms:.1f} tokens/s")
    parts.append(f"first after {answer.timings.ttft_ms:.0f} ms")
    if answer.usage.num_cached_tokens:
        parts.append(f"{answer.usage.num_cached_tokens} cached")
    if answer.finish_reason == "length":
        parts.append("cut at --max-tokens")
    return ", ".join(parts)


def one_line(error: SlipstreamError) -> str:
    """Return an error as the command line shows it."""
    return f"slipstream: {error}"
