"""Put a stream together from frames that may come twice, overlap, or leave a gap. No I/O here."""

from slipstream.shared.messages.generate import Finished, TokenFrame


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
        """
        Return the text that the frame adds; None where something before it is missing.

        A frame after a gap is dropped whole: what is sent again begins at `next_index`.
        """
        if frame.choice != self._choice:
            return ""
        if frame.index > self.next_index or frame.text_offset > self.text_length:
            return None
        new_ids = list(frame.token_ids)[self.next_index - frame.index :]
        new_text = frame.text[self.text_length - frame.text_offset :]
        self.token_ids += new_ids
        self.text_length += len(new_text)
        self._pieces.append(new_text)
        return new_text

    def is_complete(self, ending: Finished) -> bool:
        """Tell whether everything that was sent before the ending has come."""
        return self.next_index >= ending.num_tokens and self.text_length >= ending.text_length
