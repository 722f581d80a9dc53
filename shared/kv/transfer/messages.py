"""What the data plane says: a greeting, a question for blocks, and how its answer ends."""

import msgspec

PROTOCOL_VERSION = 1


class PlaneMessage(msgspec.Struct, frozen=True, array_like=True):
    """Base of the messages: arrays, each with its tag in front, new fields last with defaults."""


class Greeting(PlaneMessage, frozen=True):
    """Who speaks, and how it arranges and computes its blocks."""

    version: int
    layout: str
    host_id: str
    epoch: int
    model_fingerprint: str = ""
    block_bytes: int = 0


class Hello(Greeting, frozen=True, tag="hello"):
    """Who wants blocks."""


class Welcome(Greeting, frozen=True, tag="welcome"):
    """Who has blocks, arranged alike."""


class FetchBlocks(PlaneMessage, frozen=True, tag="fetch_blocks"):
    """Send these whole blocks of a lease, in this order, if each still has its generation."""

    transfer_id: str
    lease_id: str
    block_ids: list[int]
    generations: list[int]
    deadline_ms: int = 0  # what remains of the transfer's time


class Refused(PlaneMessage, frozen=True, tag="refused"):
    """
    No blocks, or no more of them: what came of this question must not be used.

    The reason is the plane's ("incompatible", "busy", "too_large", "invalid", "stale_block") or
    what the source's `may_read` says ("unknown_lease").
    """

    reason: str
    message: str = ""
    transfer_id: str = ""


class Sent(PlaneMessage, frozen=True, tag="sent"):
    """All blocks of the question have been sent, and each still had its generation afterwards."""

    transfer_id: str
    num_blocks: int


class Ask(PlaneMessage, frozen=True, tag="ask"):
    """A greeting and its question at once, where there is no connection to greet."""

    hello: Hello
    fetch: FetchBlocks


class Credit(PlaneMessage, frozen=True, tag="credit"):
    """How many chunks of the stream the receiver has taken so far; below 0: it has gone."""

    transfer_id: str
    num_taken: int


ServerTakes = Hello | FetchBlocks
ServerSays = Welcome | Refused | Sent
