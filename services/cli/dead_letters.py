"""What is done with dead letters: listed, submitted again under their old key, dropped."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from slipstream.shared.bus.durable import MESSAGE_ID, Durable, Stored, StoredLetter
from slipstream.shared.bus.subjects import SUBMIT, requeue_subject
from slipstream.shared.errors import InvalidRequestError, SlipstreamError
from slipstream.shared.messages.codec import ClientAnswer, decoder_of
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.reports import DeadLetter
from slipstream.shared.messages.submission import is_result_key

_MAX_NUM_RACES = 5


@dataclass(frozen=True, slots=True)
class Dead:
    """A dead letter, read."""

    sequence: int
    age_s: float
    letter: DeadLetter

    @property
    def key(self) -> str | None:
        """Under which its ending lies, and the next one will; letters of old versions have none."""
        return self.letter.key if is_result_key(self.letter.key) else None


async def dead_letters(durable: Durable, reason: str | None = None) -> AsyncIterator[Dead]:
    """Yield all, the oldest first, or those of one reason. Raises StorageError, ProtocolError."""
    sequence = 0
    while (stored := await durable.dead_letters.after(sequence)) is not None:
        sequence = stored.sequence
        dead = _read(stored)
        if reason in (None, dead.letter.reason):
            yield dead


async def find(durable: Durable, sequence: int) -> Dead | None:
    """
    Return a letter; None when it is gone: requeued, dropped, or faded.

    Raises InvalidRequestError for a number that no letter ever had, StorageError, ProtocolError.
    """
    stored = await durable.dead_letters.get(sequence)
    if stored is not None:
        return _read(stored)
    last = await durable.dead_letters.last_sequence()
    if sequence > last:
        raise InvalidRequestError(
            "NUMBER",
            f"{sequence} is none of a dead letter; `slipstream dead list` shows them",
            limit=last,
        )
    return None


async def requeue(durable: Durable, dead: Dead) -> str:
    """
    Submit a letter's request again; return the key of its result, which is the one it had.

    Broken off anywhere and repeated it comes to the same: first the failure under the key makes
    room, then the request is stored (once, by an id of the letter), last the letter goes. Whoever
    finds an answer under the key leaves it: then there is nothing left to do.

    Raises InvalidRequestError for a letter without a key, and StorageError.
    """
    key = dead.key
    if key is None:
        raise InvalidRequestError(
            "NUMBER",
            f"letter {dead.sequence} does not say under which key its result lies (an older "
            "scheduler wrote it): submit its request anew, and drop it",
        )
    if not await _has_answer(durable, key):
        await durable.publish(
            requeue_subject(key, dead.letter.subject or SUBMIT.subject()),
            dead.letter.payload,
            {MESSAGE_ID: f"requeue-{dead.sequence}"},
        )
    await durable.dead_letters.drop(dead.sequence)
    return key


async def _has_answer(durable: Durable, key: str) -> bool:
    """Tell whether there is an answer under a key; a failure is removed."""
    for _ in range(_MAX_NUM_RACES):
        stored = await durable.results.get(key)
        if stored is None:
            return False
        if not _is_failure(stored):
            return True
        if await durable.results.discard(key, stored):
            return False
    raise SlipstreamError(f"{key}: others are writing its result; try again")


def _is_failure(stored: Stored) -> bool:
    return isinstance(decoder_of(ClientAnswer).decode(stored.value), Failed)


def _read(stored: StoredLetter) -> Dead:
    return Dead(stored.sequence, stored.age_s, decoder_of(DeadLetter).decode(stored.payload))
