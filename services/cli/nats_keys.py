"""A set of NATS keys: a seed for each role, and the server's settings that name them."""

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slipstream.shared.bus.nats_access import NatsAccess, Seed, read_seed, seed_text
from slipstream.shared.bus.permissions import GUEST, NATS_ROLES, NatsRole, permissions_of
from slipstream.shared.errors import ConfigurationError

SERVER = "nats"  # the folder of what the server reads
PERMISSIONS_FILE = "permissions.conf"
SEED_FILE = "nats.nk"
PRIVATE_MODE = 0o700
CA_FILE = "ca.crt"
SERVER_CERT, SERVER_KEY = "server.crt", "server.key"
KEYED_ROLES = tuple(role for role in NATS_ROLES if role != GUEST)

_HEAD = """\
# Made by `slipstream keys init` of what Slipstream's code says that it needs: change nothing here.
# Public keys only. Whoever has no key is the guest, where there is one.
"""
_GUEST = re.compile(r"^no_auth_user: (U[A-Z2-7]{55})$", re.MULTILINE)
# Long: a service that is just starting may be busy when it is asked to sign.
_TIMEOUT_S = 10


@dataclass(frozen=True)
class KeySet:
    """A folder with one folder for each role, so that each can be given its own alone."""

    directory: Path

    @property
    def permissions_file(self) -> Path:
        """What the server's configuration includes."""
        return self.directory / SERVER / PERMISSIONS_FILE

    def seed_file(self, role: NatsRole) -> Path:
        """Return where a role finds its key."""
        return self.directory / role / SEED_FILE

    def ca_file(self, role: NatsRole) -> Path | None:
        """Return what the server's certificate leads to; None without TLS."""
        path = self.directory / role / CA_FILE
        return path if path.exists() else None

    @property
    def has_certificate(self) -> bool:
        """Whether the server has one, for TLS."""
        return (self.directory / SERVER / SERVER_CERT).exists()

    def access(self, role: NatsRole) -> NatsAccess:
        """Return what a connection of the role needs."""
        return NatsAccess(nkey=self.seed_file(role), ca=self.ca_file(role))


def make_key_set(
    keys: KeySet, *, has_guest: bool = True, is_kept: bool = False, tls_directory: str | None = None
) -> None:
    """
    Write a seed for each role, and the server's permissions for all of them.

    With `is_kept` a seed that is there stays. With `tls_directory` the server finds its certificate
    there. Raises ConfigurationError.
    """
    private_directory(keys.directory)
    private_directory(keys.directory / SERVER)
    public_keys = {role: _make_seed(keys.seed_file(role), role, is_kept) for role in KEYED_ROLES}
    guest = (_kept_guest(keys) if is_kept else None) or _new_pair()[1]
    text = settings_text(public_keys, guest if has_guest else None)
    if tls_directory is not None:
        text += _tls_text(tls_directory)
    else:
        _remove_certificates(keys)
    write_private(keys.permissions_file, text)


def _kept_guest(keys: KeySet) -> str | None:
    """Return the guest's key that there is: a server can't change it while it runs."""
    try:
        found = _GUEST.search(keys.permissions_file.read_text(encoding="ascii"))
    except OSError:
        return None
    return found[1] if found is not None else None


def _remove_certificates(keys: KeySet) -> None:
    """A client that finds an authority's certificate would insist on TLS."""
    server = keys.directory / SERVER
    authorities = [keys.directory / role / CA_FILE for role in KEYED_ROLES]
    for path in (server / SERVER_CERT, server / SERVER_KEY, *authorities):
        path.unlink(missing_ok=True)


def settings_text(public_keys: dict[NatsRole, str], guest: str | None) -> str:
    """Return the settings; `guest` is the key in whose name those without one come."""
    users = [_user(role, public_keys[role]) for role in public_keys]
    if guest is not None:
        users.append(_user(GUEST, guest))
    text = (
        f"{_HEAD}authorization {{\n  timeout: {_TIMEOUT_S}\n  users = [\n{''.join(users)}  ]\n}}\n"
    )
    if guest is not None:
        # A key that nobody has: its seed was thrown away.
        text += f"no_auth_user: {guest}\n"
    return text


def private_directory(path: Path) -> None:
    """Make a folder that nobody else may look into."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    # Somebody else's folder around ours, as in a container, is left as it is.
    if found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) != PRIVATE_MODE:
        path.chmod(PRIVATE_MODE)


def write_private(path: Path, text: str) -> None:
    """Write a file that nobody else may read; whole, or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
    beside.replace(path)


def public_key_of(seed: Seed) -> str:
    """Return the public half. Raises ConfigurationError for a seed that is damaged."""
    import nkeys  # noqa: PLC0415 # only who makes or checks keys waits for it

    try:
        public: bytes = nkeys.from_seed(bytearray(seed.text.encode())).public_key
    except (nkeys.ErrInvalidSeed, nkeys.ErrInvalidPrefixByte, ValueError) as error:
        raise ConfigurationError(f"the seed of {seed.role} is damaged") from error
    return public.decode()


def _make_seed(path: Path, role: NatsRole, is_kept: bool) -> str:  # noqa: FBT001 # private
    private_directory(path.parent)
    if is_kept and path.exists():
        seed = read_seed(path)
        if seed.role != role:
            raise ConfigurationError(f"{path} is the key of {seed.role}, not of {role}")
        return public_key_of(seed)
    text, public = _new_pair()
    write_private(path, seed_text(Seed(role, text)))
    return public


def _new_pair() -> tuple[str, str]:
    import nkeys  # noqa: PLC0415 - only who makes or checks keys waits for it

    seed: bytes = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    public: bytes = nkeys.from_seed(bytearray(seed)).public_key
    return seed.decode(), public.decode()


def _user(role: NatsRole, public_key: str) -> str:
    allowed = permissions_of(role)
    answers = '        allow_responses: { max: 1, expires: "2m" }\n' if allowed.answers else ""
    return (
        f"    # {role}\n"
        f"    {{ nkey: {public_key}\n"
        "      permissions: {\n"
        f"        publish: {{ allow: [\n{_lines(allowed.publish)}        ] }}\n"
        f"        subscribe: {{ allow: [\n{_lines(allowed.subscribe)}        ] }}\n"
        f"{answers}      }}\n    }}\n"
    )


def _lines(subjects: Iterable[str]) -> str:
    return "".join(f'          "{subject}"\n' for subject in subjects)


def _tls_text(directory: str) -> str:
    return (
        "tls {\n"
        f'  cert_file: "{directory}/{SERVER_CERT}"\n'
        f'  key_file: "{directory}/{SERVER_KEY}"\n'
        "  timeout: 5\n}\n"
    )
