"""API keys: who may ask, and as which tenant."""

import hashlib
import hmac
import stat
from collections.abc import Mapping
from pathlib import Path

import structlog

from slipstream.services.gateway.errors import ApiError
from slipstream.shared.errors import ConfigurationError

log = structlog.get_logger()

_SCHEME = "bearer "


class ApiKeys:
    """Without any key everybody may ask, as the tenant that the request names."""

    def __init__(self, tenants: Mapping[str, str]) -> None:
        # Digests: all of one length, which else the comparison's time would tell.
        self._tenants = {_digest(_bytes_of(key)): tenant for key, tenant in tenants.items()}

    def tenant_of(self, authorization: str | None) -> str | None:
        """
        Return the tenant of a request; None where there are no keys. Raises ApiError.

        It compares with every key and in constant time, so that time tells nothing of any.
        """
        if not self._tenants:
            return None
        given = authorization or ""
        # Headers were read as latin-1, whatever bytes they are.
        is_bearer = given.lower().startswith(_SCHEME)
        key = given[len(_SCHEME) :].strip().encode("latin-1", "replace") if is_bearer else b""
        found, given_digest = None, _digest(key)
        for each, tenant in self._tenants.items():
            if hmac.compare_digest(each, given_digest):
                found = tenant
        if found is None:
            what = "is not known here" if key else "is missing: send Authorization: Bearer KEY"
            raise ApiError("invalid_api_key", f"the API key {what}")
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _bytes_of(key: str) -> bytes:
    """Return what a header holds of it; a variable may be no UTF-8, as a header may."""
    return key.encode("utf-8", "surrogateescape")


def read_keys(file: Path | None, listed: str) -> ApiKeys:
    """Read keys from a file of lines, and from a list with commas. Raises ConfigurationError."""
    lines = listed.split(",")
    if file is not None:
        try:
            _check_mode(file, file.stat().st_mode)
            lines += file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no UTF-8"
            raise ConfigurationError(f"--api-keys {file} can't be read: {reason}") from error
    tenants: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        # Never the key itself: it would stand in a log.
        if len(words) > 2:  # noqa: PLR2004 - a key and its tenant
            raise ConfigurationError(f"API keys, line {number}: it must be KEY TENANT")
        if words[0] in tenants:
            raise ConfigurationError(f"API keys, line {number}: the key is there twice")
        tenants[words[0]] = words[1] if len(words) > 1 else ""
    if file is not None and not tenants:
        # An empty file must not open the door.
        raise ConfigurationError(f"--api-keys {file} has no key: write lines KEY TENANT")
    return ApiKeys(tenants)


def _check_mode(file: Path, mode: int) -> None:
    """Refuse a file to which others may add keys; warn of one that others may read."""
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigurationError(
            f"--api-keys {file} can be written by others (mode {stat.S_IMODE(mode):04o}): "
            "whoever may write it lets himself in; chmod 600 it"
        )
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        # A mounted secret often is so, within a container that has one user.
        log.warning("api_keys_readable_by_others", file=str(file), mode=f"{mode & 0o777:04o}")
