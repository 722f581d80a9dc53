"""
Under which key the ending of a submission is found, and which submissions are the same. Pure.

With a `request_key` anybody can name the result before there is one, in a shell too:

    printf '0::order-17' | sha256sum | cut -c1-32        # behind `key-`; LENGTH:TENANT:KEY

Without one it is the sequence number of the publish acknowledgement: `seq-<number>`.
"""

import hashlib
import re
from dataclasses import dataclass, replace

import msgspec

from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.messages.codec import decode_request, encode
from slipstream.shared.messages.common import LatencyClassName
from slipstream.shared.messages.generate import GenerateRequest

MAX_KEY_CHARACTERS = 128
_NUM_DIGITS = 32  # 128 bits
_KEY = re.compile(rf"seq-[0-9]+|key-[0-9a-f]{{{_NUM_DIGITS}}}")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a submission is to whoever looks for its ending, or for room for it."""

    key: str  # of its result
    own_key: str  # of its result if `key` belongs to another body
    body_digest: str
    num_choices: int = 1
    tenant: str = ""
    latency_class: LatencyClassName | None = None
    deadline_ms: int | None = None


def result_key(request_key: str, tenant: str = "") -> str:
    """Return where the ending of a keyed submission lies; tenants can't meet in one key."""
    name = tenant.encode()
    whole = b"%d:%b:%b" % (len(name), name, request_key.encode())
    return f"key-{hashlib.sha256(whole).hexdigest()[:_NUM_DIGITS]}"


def sequence_key(sequence: int) -> str:
    """Return where the ending of a submission without a key lies."""
    return f"seq-{sequence}"


def key_of(request: GenerateRequest, sequence: int) -> str:
    """Return where a submission's ending lies; one that is refused for its key has no other."""
    if request.request_key and len(request.request_key) <= MAX_KEY_CHARACTERS:
        return result_key(request.request_key, request.tenant or "")
    return sequence_key(sequence)


def is_result_key(key: str) -> bool:
    """Tell whether a text can be the key of a result: nothing else may stand in a subject."""
    return _KEY.fullmatch(key) is not None


def body_digest(request: GenerateRequest) -> str:
    """Return what is the same for the same request, however it was written or will be logged."""
    body = msgspec.structs.replace(request, client_request_id=None, batch_inbox=None)
    return hashlib.sha256(encode(body)).hexdigest()[:_NUM_DIGITS]


def is_same(stored_digest: str | None, digest: str) -> bool:
    """Tell whether a stored result is of this body; one without a digest is whoever's asks."""
    return stored_digest in (None, digest)


def identify(payload: bytes, sequence: int, requeued_key: str | None = None) -> Identity:
    """
    Return a submission's identity; one that can't be read, or has no usable key, has its own.

    One that was a dead letter keeps the key that its publisher knows.
    """
    if requeued_key is not None and is_result_key(requeued_key):
        own = identify(payload, sequence)
        return replace(own, key=requeued_key, own_key=requeued_key)
    own_key = sequence_key(sequence)
    try:
        request = decode_request(payload)
        digest = body_digest(request)
    except (InvalidRequestError, OverflowError, RecursionError):
        # Numbers beyond 64 bits can be read, not written; admission says what is wrong with them.
        return Identity(own_key, own_key, hashlib.sha256(payload).hexdigest()[:_NUM_DIGITS])
    return Identity(
        key_of(request, sequence),
        own_key,
        digest,
        num_choices=max(1, request.n or 1),
        tenant=request.tenant or "",
        latency_class=request.latency_class,
        deadline_ms=request.deadline_ms,
    )
