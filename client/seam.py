"""Where a repeated stream goes on from the one that broke: each character once. Pure."""

from slipstream.client.errors import RepeatDiffersError


class Seam:
    """
    The text of one request over all tries to stream it.

    A repeat with the same seed says the same from its beginning (same tokens on every path), so
    what is known already is cut from it, and compared: a repeat that differs is an error, never
    a text put together of two answers.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._known = ""  # what earlier tries said
        self._position = 0  # how much of it this one has said

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._pieces)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said yet."""
        return not self._pieces

    def begin(self) -> None:
        """The next piece is the first of a new try."""
        self._known = self.text
        self._position = 0

    def take(self, piece: str) -> str:
        """Return what a piece adds. Raises RepeatDiffersError."""
        known = self._known[self._position : self._position + len(piece)]
        if not piece.startswith(known):
            raise RepeatDiffersError(len(self._known))
        self._position += len(piece)
        new = piece[len(known) :]
        if new:
            self._pieces.append(new)
        return new

    def end(self) -> None:
        """Check that a try that ended said all that was known. Raises RepeatDiffersError."""
        if self._position < len(self._known):
            raise RepeatDiffersError(len(self._known))
