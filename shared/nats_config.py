"""How a process reaches NATS, and who it is there."""

from dataclasses import dataclass
from pathlib import Path

from slipstream.shared.bus.nats_access import NatsAccess

DEFAULT_NATS_URL = "nats://127.0.0.1:4222"


@dataclass(frozen=True, kw_only=True)
class NatsConfig:
    """The server, our key, and TLS."""

    nats_url: str = DEFAULT_NATS_URL
    nats_nkey: Path | None = None  # file with the seed of our key; None: as a guest
    nats_ca: Path | None = None  # what the server's certificate must lead to; None: the system's
    nats_cert: Path | None = None  # where the server wants to see one
    nats_key: Path | None = None

    @property
    def nats_access(self) -> NatsAccess:
        """How we connect. Raises ConfigurationError."""
        return NatsAccess(
            nkey=self.nats_nkey, ca=self.nats_ca, cert=self.nats_cert, key=self.nats_key
        )

    def __post_init__(self) -> None:
        _ = self.nats_access
