"""Identities of the things that travel in messages, each its own type."""

import base64
import secrets
from typing import NewType

RequestId = NewType("RequestId", str)
WorkerId = NewType("WorkerId", str)
HostId = NewType("HostId", str)
LeaseId = NewType("LeaseId", str)

_BITS_PER_CHARACTER = 5


def _random_name(num_characters: int) -> str:
    # In one go: a lease is made while others wait for the book.
    num_bytes = -(-num_characters * _BITS_PER_CHARACTER // 8)
    return base64.b32encode(secrets.token_bytes(num_bytes))[:num_characters].decode().lower()


def new_request_id() -> RequestId:
    """Return an id nobody can guess: knowing it is the right to cancel and resume (120 bits)."""
    return RequestId(_random_name(24))


def new_worker_id(role: str) -> WorkerId:
    """Return an id unique over restarts; the role in front is for people who read logs."""
    return WorkerId(f"{role}-{_random_name(8)}")


def new_lease_id() -> LeaseId:
    """Return the name of a lease; holding it is the right to act on its blocks."""
    return LeaseId(_random_name(16))


def new_host_id() -> HostId:
    """Return a host id; it lives in the arena's header and ends with the arena."""
    return HostId(_random_name(12))
