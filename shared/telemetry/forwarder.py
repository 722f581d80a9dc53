"""Send OTLP bodies on to another endpoint without ever making their senders wait."""

import contextlib
import logging
import queue
import threading
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from slipstream.shared.telemetry.rate_limit import RateLimit

_TIMEOUT_S = 2.0
_MAX_NUM_WAITING = 64
# They belong to one connection, or are set anew by whoever sends the body on.
_HOP_HEADERS = frozenset({"host", "content-length", "connection", "accept-encoding", "keep-alive"})

_log = logging.getLogger(__name__)
_log.addFilter(RateLimit())


class Forwarder:
    """Sends bodies on to another endpoint, in order and on its own thread; never blocks."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._waiting: queue.Queue[tuple[bytes, dict[str, str]] | None] = queue.Queue(
            _MAX_NUM_WAITING
        )
        # A proxy from HTTP_PROXY could not reach this machine's own loopback address.
        is_loopback = urlsplit(url).hostname in {"127.0.0.1", "::1", "localhost"}
        proxies = [urllib.request.ProxyHandler({})] if is_loopback else []
        self._opener = urllib.request.build_opener(*proxies)
        self._thread = threading.Thread(target=self._run, name="otlp-forward", daemon=True)
        self._thread.start()

    def forward(self, body: bytes, headers: dict[str, str]) -> None:
        """Queue a body; a full queue means that the other side is away, and it is dropped."""
        kept = {key: value for key, value in headers.items() if key not in _HOP_HEADERS}
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait((body, kept))

    def stop(self, deadline_s: float) -> None:
        """Send what is queued and end, or give up at the deadline."""
        deadline = time.monotonic() + deadline_s
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=deadline_s)
        self._thread.join(max(deadline - time.monotonic(), 0.0))

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            body, headers = item
            request = urllib.request.Request(self._url, body, headers)  # noqa: S310 - the user's own endpoint
            try:
                with self._opener.open(request, timeout=_TIMEOUT_S):
                    pass
            except urllib.error.HTTPError as error:
                error.close()
                _log.warning("spans_not_forwarded: status %d", error.code)
            except (OSError, ValueError) as error:
                _log.warning("spans_not_forwarded: %s", error)
