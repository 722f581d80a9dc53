"""What a server refuses us on one connection, for good or by the subject."""

import asyncio
import ssl
from collections.abc import Coroutine
from typing import Any

from slipstream.shared.bus.nats_client import NoTlsError
from slipstream.shared.bus.nats_trouble import Denial

_AUTHORIZATION = "authorization violation"
_MAX_NUM_KNOWN = 256  # subjects that are told apart in the log


class Refusals:
    """Notes what a server refuses on one connection."""

    def __init__(self) -> None:
        self.subjects: dict[str, str] = {}  # those denied, and for what
        self._refused = asyncio.Event()
        self._error: Exception | None = None

    def connecting(self, error: Exception) -> None:
        """Take what failed while connecting: some of it no further try mends."""
        if why_refused(error) is not None:
            self._error = error
            self._refused.set()

    async def unless_refused(self, connecting: Coroutine[Any, Any, None]) -> None:
        """Wait for a connection. Raises what it does, or what it was refused with."""
        waits = [asyncio.create_task(connecting), asyncio.create_task(self._refused.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if self._error is not None and not waits[0].done():
                raise self._error
            await waits[0]
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def note(self, denial: Denial) -> None:
        """Take note of a subject that we may not use."""
        if len(self.subjects) < _MAX_NUM_KNOWN:
            self.subjects[denial.subject] = denial.verb


def why_refused(error: Exception) -> str | None:
    """Say why a server and we can't come together; None for what time may mend."""
    if _AUTHORIZATION in str(error).lower():
        return (
            "refuses our key, or asks for one: pass --nats-nkey FILE or SLIPSTREAM_NATS_NKEY with "
            "a key that its configuration names (`slipstream keys init`)"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"shows a certificate that is not trusted ({error.verify_message}): pass --nats-ca "
            "FILE or SLIPSTREAM_NATS_CA with the certificate of its authority"
        )
    if isinstance(error, ssl.SSLError):
        return f"and we can't agree on TLS ({error.reason}); it may ask for --nats-cert FILE"
    if isinstance(error, NoTlsError):
        return "offers no TLS, which tls:// or --nats-ca ask for: take nats://, or mend the server"
    return None
