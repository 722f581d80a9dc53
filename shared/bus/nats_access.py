"""What a connection to NATS proves of itself, and asks of the server: a key, and TLS."""

import re
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from slipstream.shared.bus.permissions import GUEST, NatsRole, inbox_prefix
from slipstream.shared.errors import ConfigurationError

_SEED = re.compile(r"^SU[A-Z2-7]{56}$", re.MULTILINE)
_ROLE = re.compile(r"^# role: (\S+)$", re.MULTILINE)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class Seed:
    """The private half of a key, and whose it is."""

    role: NatsRole
    text: str

    def __repr__(self) -> str:
        # Whatever is printed or logged: not this.
        return f"Seed({self.role})"


@dataclass(frozen=True, kw_only=True)
class NatsAccess:
    """The files of a connection; without any it is a guest's, in plain text."""

    nkey: Path | None = None  # file of a seed
    ca: Path | None = None  # certificates that the server's must lead to
    cert: Path | None = None  # our own, where the server asks for it
    key: Path | None = None  # of that certificate

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigurationError(
                "--nats-cert and --nats-key belong together: a certificate and its key"
            )

    def seed(self) -> Seed | None:
        """Read the key. Raises ConfigurationError."""
        return read_seed(self.nkey) if self.nkey is not None else None

    def wants_tls(self, url: str) -> bool:
        """Whether a server without TLS is to be refused."""
        return urlsplit(url).scheme == "tls" or self.ca is not None or self.cert is not None

    def connect_options(self, url: str) -> dict[str, Any]:  # Any: of several types
        """Return what nats-py is told. Raises ConfigurationError."""
        seed = self.seed()
        options: dict[str, Any] = {"inbox_prefix": inbox_prefix(seed.role if seed else GUEST)}
        if seed is not None:
            options["nkeys_seed_str"] = seed.text
        if self.wants_tls(url):
            options["tls"] = self._tls()
        return options

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:  # also what is wrong with a certificate
            files = ", ".join(str(each) for each in (self.ca, self.cert, self.key) if each)
            raise ConfigurationError(f"no TLS can be made of {files}: {error}") from error
        return context


NO_ACCESS = NatsAccess()


def read_seed(path: Path) -> Seed:
    """Read a file of `slipstream keys init`. Raises ConfigurationError."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise ConfigurationError(f"the NATS key {path} can't be read: {error.strerror}") from error
    if mode & _OTHERS:
        raise ConfigurationError(
            f"the NATS key {path} is open to others (mode {stat.S_IMODE(mode):04o}): "
            f"chmod 600 {path}"
        )
    seeds, roles = _SEED.findall(text), _ROLE.findall(text)
    if len(seeds) != 1:
        raise ConfigurationError(
            f"{path} holds no seed of a NATS user key: make one with `slipstream keys init`"
        )
    if len(roles) != 1 or roles[0] not in get_args(NatsRole):
        raise ConfigurationError(
            f"{path} does not say whose key it is: it needs a line `# role: ROLE`, with one of "
            f"{', '.join(get_args(NatsRole))}"
        )
    return Seed(roles[0], seeds[0])


def seed_text(seed: Seed) -> str:
    """Return the content of a seed's file; other NATS tools read it too."""
    return f"# Key of Slipstream for NATS: keep it secret.\n# role: {seed.role}\n{seed.text}\n"
