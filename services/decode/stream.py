"""The stream of one request: numbered frames, one ending, and a log to resume from. Pure."""

import time
from dataclasses import dataclass, field

from slipstream.services.decode.stopping import Ending
from slipstream.shared.messages.common import Timings, Usage
from slipstream.shared.messages.generate import (
    Choice,
    Completion,
    EchoedPrompt,
    Finished,
    TokenFrame,
)
from slipstream.shared.messages.jobs import DecodeJob
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import TokenLogprobs


@dataclass(eq=False)
class TokenLog:
    """
    Everything a request has said: tokens, text, and where in the text each token began.

    `first_index` tokens were said by earlier attempts; what this attempt knows of them is here too,
    so that a reader can resume from any index.
    """

    job: DecodeJob
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    text: str = ""
    offsets: list[int] = field(default_factory=list)  # characters sent before token i
    ending: Finished | None = None
    num_sent: int = 0  # tokens in frames so far
    num_characters_sent: int = 0
    received_at: float = field(default_factory=time.monotonic)
    first_token_at: float | None = None

    def append(self, token_id: int, text: str, logprobs: TokenLogprobs | None) -> None:
        """Add a token and the text that became certain with it."""
        if self.first_token_at is None:
            self.first_token_at = time.monotonic()
        self.offsets.append(len(self.text))
        self.token_ids.append(token_id)
        self.text += text
        if logprobs is not None:
            self.logprobs.append(logprobs)

    def restored(self) -> None:
        """
        Take note that all that is here was said by earlier attempts.

        It is said again with the first frame: what a worker has reported it need not have sent
        before it died. Readers drop what they have.
        """
        self.first_token_at = None

    def next_frame(self) -> TokenFrame | None:
        """Return what was not sent yet, or None."""
        if self.num_sent == len(self.token_ids) and self.num_characters_sent == len(self.text):
            return None
        frame = self.frame_from(self.num_sent, self.num_characters_sent)
        self.num_sent = len(self.token_ids)
        self.num_characters_sent = len(self.text)
        return frame

    def frame_from(
        self, index: int, offset: int | None = None, end: int | None = None
    ) -> TokenFrame:
        """
        Return everything from a token on, for a reader that resumes; maybe without tokens.

        With an `end` it goes up to the token there, and another frame can go on from it.
        """
        index = min(max(index, 0), len(self.token_ids))
        if offset is None:
            offset = self._offset_of(index)
        text_end = None if end is None else self._offset_of(end)
        return TokenFrame(
            request_id=self.job.request_id,
            attempt=self.job.attempt,
            choice=self.job.choice,
            index=index,
            text_offset=offset,
            token_ids=PackedInts(self.token_ids[index:end]),
            text=self.text[offset:text_end],
            logprobs=self.logprobs[index:end] if self.logprobs else None,
        )

    def _offset_of(self, index: int) -> int:
        return self.offsets[index] if index < len(self.offsets) else len(self.text)

    def keep_alive(self) -> TokenFrame:
        """Return a frame that says only that the stream lives."""
        return self.frame_from(self.num_sent, self.num_characters_sent)

    def timings(self, prefill_ms: float, hand_over_ms: float = 0.0) -> Timings:
        """Return the times so far, counted from the request's arrival at the scheduler."""
        now = time.monotonic()
        first_at = self.first_token_at or now
        num_later = len(self.token_ids) - 1
        return Timings(
            queue_ms=self.job.queue_ms,
            prefill_ms=prefill_ms,
            hand_over_ms=hand_over_ms,
            ttft_ms=self._since_arrival(first_at),
            tpot_ms=(now - first_at) * 1000 / num_later if num_later > 0 else None,
            total_ms=self._since_arrival(now),
        )

    def finish(
        self,
        ending: Ending,
        usage: Usage,
        timings: Timings,
        numerics: str,
        prompt: EchoedPrompt | None = None,
    ) -> Finished | Completion:
        """Return the ending in the form the client asked for, and keep it for who resumes."""
        job = self.job
        self.ending = Finished(
            request_id=job.request_id,
            attempt=job.attempt,
            finish_reason=ending.finish_reason,
            stop_reason=ending.stop_reason,
            usage=usage,
            timings=timings,
            num_tokens=len(self.token_ids),
            text_length=len(self.text),
            choice=job.choice,
            seed=job.sampling.seed,
            model=job.model,
            route=job.route,
            route_reason=job.route_reason,
            numerics=numerics,
            trace_id=job.root_span.trace_id,
            prompt=prompt,
        )
        return self.ending if job.reply.is_streamed else self._completion(ending, self.ending)

    def _completion(self, ending: Ending, finished: Finished) -> Completion:
        shared = {
            name: getattr(finished, name)
            for name in Completion.__struct_fields__
            if name in Finished.__struct_fields__
        }
        choice = Choice(
            index=self.job.choice,
            text=self.text,
            token_ids=PackedInts(self.token_ids),
            finish_reason=ending.finish_reason,
            stop_reason=ending.stop_reason,
            logprobs=self.logprobs or None,
        )
        return Completion(**shared, choices=[choice])

    def _since_arrival(self, moment: float) -> float:
        return self.job.elapsed_ms + (moment - self.received_at) * 1000
