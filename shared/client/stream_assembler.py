"""Put a stream together from frames that may come twice, overlap, or leave a gap. No I/O here."""

import msgspec

from slipstream.shared.messages.generate import Finished, TokenFrame
from slipstream.shared.messages.packed import PackedInts


class StreamAssembler:
    """
    The text and tokens of one choice, each index exactly once.

    The text up to token i depends on the tokens up to i alone, so what another attempt sends again
    is the same text, and everything is cut by index and text offset; the attempt does not matter.
    """

    def __init__(self, choice: int = 0) -> None:
        self._choice = choice
        self._pieces: list[str] = []
        self.token_ids: list[int] = []
        self.text_length = 0

    @property
    def next_index(self) -> int:
        """The output position of the first token that has not come."""
        return len(self.token_ids)

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._pieces)

    def take(self, frame: TokenFrame) -> str | None:
        """Return the text that the frame adds; None where something before it is missing."""
        if frame.choice != self._choice:
            return ""
        new = self.take_new(frame)
        return None if new is None else new.text

    def take_new(self, frame: TokenFrame) -> TokenFrame | None:
        """
        Return what a frame of this choice adds; None where something before it is missing.

        A frame after a gap is dropped whole: what is sent again begins at `next_index`.
        """
        num_known = self.next_index - frame.index
        num_known_characters = self.text_length - frame.text_offset
        if num_known < 0 or num_known_characters < 0:
            return None
        if num_known or num_known_characters:
            frame = _cut(frame, num_known, num_known_characters)
        self.token_ids += frame.token_ids
        self.text_length += len(frame.text)
        self._pieces.append(frame.text)
        return frame

    def is_complete(self, ending: Finished) -> bool:
        """Tell whether everything that was sent before the ending has come."""
        return self.next_index >= ending.num_tokens and self.text_length >= ending.text_length


def _cut(frame: TokenFrame, num_tokens: int, num_characters: int) -> TokenFrame:
    token_ids = PackedInts(list(frame.token_ids)[num_tokens:])
    logprobs = frame.logprobs
    if logprobs is not None:
        # From the end: a later attempt may not know those of tokens that it didn't compute.
        logprobs = logprobs[max(0, len(logprobs) - len(token_ids)) :]
    return msgspec.structs.replace(
        frame,
        index=frame.index + num_tokens,
        text_offset=frame.text_offset + num_characters,
        token_ids=token_ids,
        text=frame.text[num_characters:],
        logprobs=logprobs,
    )
