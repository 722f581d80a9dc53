"""A certificate authority for development, and the NATS server's certificate, made by openssl."""

import subprocess
import tempfile
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from slipstream.services.cli.nats_keys import (
    CA_FILE,
    KEYED_ROLES,
    SERVER,
    SERVER_CERT,
    SERVER_KEY,
    KeySet,
    write_private,
)
from slipstream.shared.errors import ConfigurationError

_DAYS = "365"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_OPENSSL_S = 30.0


def make_certificates(keys: KeySet, hosts: Sequence[str]) -> None:
    """
    Write the server's certificate and key, and the authority's certificate for each role.

    The authority's key is thrown away: it can sign nothing more. Raises ConfigurationError.
    """
    with tempfile.TemporaryDirectory() as work:
        path = Path(work)
        _openssl(
            path,
            *("req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.crt", "-days", _DAYS),
            *("-subj", "/CN=Slipstream development authority"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )
        _openssl(
            path, "req", *_KEY, "-keyout", "key", "-out", "request", "-subj", "/CN=slipstream-nats"
        )
        (path / "extensions").write_text(_extensions(hosts), encoding="ascii")
        _openssl(
            path,
            *(
                "x509",
                "-req",
                "-in",
                "request",
                "-CA",
                "ca.crt",
                "-CAkey",
                "ca.key",
                "-days",
                _DAYS,
            ),
            *("-CAcreateserial", "-extfile", "extensions", "-out", "crt"),
        )
        server = keys.directory / SERVER
        write_private(server / SERVER_CERT, (path / "crt").read_text(encoding="ascii"))
        write_private(server / SERVER_KEY, (path / "key").read_text(encoding="ascii"))
        authority = (path / "ca.crt").read_text(encoding="ascii")
    for role in KEYED_ROLES:
        write_private(keys.directory / role / CA_FILE, authority)


def _extensions(hosts: Sequence[str]) -> str:
    names = ",".join(f"{'IP' if _is_address(host) else 'DNS'}:{host}" for host in hosts)
    return (
        f"subjectAltName={names}\nbasicConstraints=critical,CA:FALSE\n"
        "keyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth\n"
    )


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _openssl(directory: Path, *arguments: str) -> None:
    try:
        subprocess.run(  # noqa: S603 # nothing of others, no shell
            ["openssl", *arguments],  # noqa: S607 # wherever it is installed
            cwd=directory,
            check=True,
            capture_output=True,
            text=True,
            timeout=_OPENSSL_S,
        )
    except FileNotFoundError as error:
        raise ConfigurationError(
            "--tls needs the program openssl, which was not found: install it, or bring a "
            "certificate of your own (docs/operations.md, Keys)"
        ) from error
    except subprocess.SubprocessError as error:
        said = getattr(error, "stderr", "") or str(error)
        raise ConfigurationError(f"openssl made no certificate: {said.strip()}") from error
