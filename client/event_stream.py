"""Take server-sent events apart. Pure: bytes in, the data of whole events out."""

from slipstream.shared.errors import ProtocolError

MAX_EVENT_BYTES = 8 * 2**20


class EventStream:
    """
    Reads events as they are cut by the network: anywhere.

    Lines end with a line feed, with or without a carriage return. Nothing else ends one: JSON may
    hold the other characters that Python takes for ends of lines.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # of a line that has not ended, as they came
        self._num_rest_bytes = 0
        self._data: list[bytes] = []  # of an event that has not ended
        self._num_bytes = 0

    def feed(self, received: bytes) -> list[bytes]:
        """Return the data of the events that end here. Raises ProtocolError for endless ones."""
        # What has come of a line is not looked at again with each piece: it may be long.
        first, *others = received.split(b"\n")
        self._add_rest(first)
        events = []
        for rest in others:
            event = self._take(b"".join(self._rest).removesuffix(b"\r"))
            if event is not None:
                events.append(event)
            self._rest, self._num_rest_bytes = [], 0
            self._add_rest(rest)
        if self._num_bytes + self._num_rest_bytes > MAX_EVENT_BYTES:
            raise ProtocolError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events

    def _add_rest(self, piece: bytes) -> None:
        if piece:
            self._rest.append(piece)
            self._num_rest_bytes += len(piece)

    def _take(self, line: bytes) -> bytes | None:
        if not line:
            event = b"\n".join(self._data) if self._data else None
            self._data, self._num_bytes = [], 0
            return event
        name, _, value = line.partition(b":")  # a comment has no name
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._num_bytes += len(line)  # one without a value takes room too
        return None
