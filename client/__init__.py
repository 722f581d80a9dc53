"""
The Python client: `Client` and `AsyncClient`, over NATS or HTTP.

The one package with an `__init__.py`, so that what programs import has one short name
(docs/adr/0001).
"""

from slipstream.client.async_client import AsyncClient
from slipstream.client.errors import (
    ClientClosedError,
    ConnectionLostError,
    HttpStatusError,
    NoSchedulerError,
    RepeatDiffersError,
    ServerUnreachableError,
    UnfinishedStreamError,
)
from slipstream.client.options import Options
from slipstream.client.retries import Retries
from slipstream.client.streams import AsyncStream
from slipstream.client.sync_client import Client, Stream
from slipstream.shared.bus.nats_access import NatsAccess
from slipstream.shared.client.answers import Answer, IncompleteStreamError, RequestFailedError
from slipstream.shared.errors import (
    ConfigurationError,
    DeadlineExceededError,
    InvalidRequestError,
    SlipstreamError,
)

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncStream",
    "Client",
    "ClientClosedError",
    "ConfigurationError",
    "ConnectionLostError",
    "DeadlineExceededError",
    "HttpStatusError",
    "IncompleteStreamError",
    "InvalidRequestError",
    "NatsAccess",
    "NoSchedulerError",
    "Options",
    "RepeatDiffersError",
    "RequestFailedError",
    "Retries",
    "ServerUnreachableError",
    "SlipstreamError",
    "Stream",
    "UnfinishedStreamError",
]
