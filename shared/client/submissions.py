"""The client of the durable entrance: a request is stored, its ending fetched when it is there."""

import asyncio
import secrets
import time

from slipstream.shared.bus.durable import (
    BODY_DIGEST,
    MESSAGE_ID,
    Durable,
    StorageError,
    TooLargeToStoreError,
)
from slipstream.shared.bus.subjects import SUBMIT
from slipstream.shared.client.answers import RequestFailedError
from slipstream.shared.errors import InvalidRequestError, ProtocolError
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encode
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Completion, GenerateRequest
from slipstream.shared.messages.submission import (
    body_digest,
    is_result_key,
    is_same,
    key_of,
    result_key,
)

_NUM_TRIES = 3
_REST_S = 0.25  # what a server may need that is just becoming ready
_LOOK_S = 0.1
_LONGEST_LOOK_S = 1.0


async def submit(durable: Durable, request: GenerateRequest) -> str:
    """
    Store a request; return the key of its result.

    Raises TooLargeToStoreError, other StorageErrors, and RequestFailedError where the key has the
    result of another request.
    """
    if request.request_key is not None:
        await _check_key(durable, request)
    # The same id for each try: one that was stored without our hearing of it is not stored again.
    headers = {MESSAGE_ID: secrets.token_hex(16)}
    payload = encode(request, "json")  # and so will its result be: people read it
    for num_left in reversed(range(_NUM_TRIES)):
        try:
            sequence = await durable.publish(SUBMIT.subject(), payload, headers)
            break
        except TooLargeToStoreError:
            raise
        except StorageError:
            if not num_left:
                raise
            await asyncio.sleep(_REST_S)
    return key_of(request, sequence)


async def _check_key(durable: Durable, request: GenerateRequest) -> None:
    key = result_key(request.request_key or "", request.tenant or "")
    stored = await durable.results.get(key)
    if stored is not None and not is_same(stored.headers.get(BODY_DIGEST), body_digest(request)):
        raise RequestFailedError(
            Failed(
                code="conflict",
                message=f"--request-key {request.request_key} has the result of another request "
                f"({key}); take another key",
            )
        )


async def fetch(durable: Durable, key: str, wait_s: float) -> Completion | None:
    """
    Return the answer under a key, or None when there is none within so many seconds.

    Raises InvalidRequestError for what is no key, ProtocolError for what is no ending,
    StorageError, and RequestFailedError for the ending of a request that failed.
    """
    if not is_result_key(key):
        raise InvalidRequestError("KEY", f"{key[:64]!r} is not what `slipstream submit` prints")
    give_up_at, rest_s = time.monotonic() + wait_s, _LOOK_S
    while (stored := await durable.results.get(key)) is None:
        left_s = give_up_at - time.monotonic()
        if left_s <= 0:
            return None
        await asyncio.sleep(min(rest_s, left_s))
        rest_s = min(rest_s * 2, _LONGEST_LOOK_S)
    match decoder_of(ClientAnswer).decode(stored.value):
        case Completion() as completion:
            return completion
        case Failed() as failed:
            raise RequestFailedError(failed)
        case other:
            raise ProtocolError(f"the result {key} is no ending but {type(other).__name__}")
