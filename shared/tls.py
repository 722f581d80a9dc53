"""TLS by files: which options name them, and contexts made of them when a process starts."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from slipstream.shared.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class HttpTlsFiles:
    """What the HTTP gateway shows its clients."""

    tls_cert: Path | None = None  # PEM: the certificate, and those between it and a root
    tls_key: Path | None = None  # PEM, without a password

    def _check_tls(self) -> None:
        _check_together({"--tls-cert": self.tls_cert, "--tls-key": self.tls_key})


@dataclass(frozen=True, kw_only=True)
class TransferTlsFiles:
    """What KV managers show each other; a manager has what its authority has signed."""

    transfer_tls_cert: Path | None = None
    transfer_tls_key: Path | None = None
    transfer_tls_ca: Path | None = None  # of the managers alone: whoever it signs may connect

    def _check_tls(self) -> None:
        _check_together(
            {
                "--transfer-tls-cert": self.transfer_tls_cert,
                "--transfer-tls-key": self.transfer_tls_key,
                "--transfer-tls-ca": self.transfer_tls_ca,
            }
        )


@dataclass(frozen=True)
class PeerTls:
    """Both directions of a connection between equals: each shows a certificate to the other."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def http_tls(files: HttpTlsFiles) -> ssl.SSLContext | None:
    """Return the context of an HTTPS server, or None. Raises ConfigurationError. Reads files."""
    if files.tls_cert is None or files.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_pair(context, files.tls_cert, files.tls_key, "--tls-")
    context.set_alpn_protocols(["http/1.1"])
    return context


def transfer_tls(files: TransferTlsFiles) -> PeerTls | None:
    """Return the contexts of a KV manager, or None. Raises ConfigurationError. Reads files."""
    cert, key, authority = files.transfer_tls_cert, files.transfer_tls_key, files.transfer_tls_ca
    if cert is None or key is None or authority is None:
        return None
    server = _peer_context(ssl.PROTOCOL_TLS_SERVER, cert, key, authority)
    server.num_tickets = 0  # a session would outlive what made it
    return PeerTls(server, _peer_context(ssl.PROTOCOL_TLS_CLIENT, cert, key, authority))


def _peer_context(protocol: int, cert: Path, key: Path, authority: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # both ends are ours
    # Managers are met at whatever address NATS names; what counts is who has signed them.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    _load_pair(context, cert, key, "--transfer-tls-")
    _check_readable("--transfer-tls-ca", authority)
    try:
        context.load_verify_locations(authority)
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"--transfer-tls-ca {authority} holds no certificate in PEM: {_reason(error)}"
        ) from error
    return context


def _load_pair(context: ssl.SSLContext, cert: Path, key: Path, prefix: str) -> None:
    _check_readable(f"{prefix}cert", cert)
    _check_readable(f"{prefix}key", key)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        reason = _reason(error)
        if "MISMATCH" in reason:
            reason = "the key is not the certificate's"
        raise ConfigurationError(
            f"{prefix}cert {cert} and {prefix}key {key} can't be used: {reason}; each must be PEM, "
            "the key without a password and of the first certificate"
        ) from error


def _no_password() -> str:
    """Keep OpenSSL from asking at a terminal."""
    raise ValueError("the key has a password")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error) or type(error).__name__


def _check_readable(option: str, file: Path) -> None:
    try:
        with file.open("rb") as opened:
            opened.read(1)
    except OSError as error:
        raise ConfigurationError(f"{option} {file} can't be read: {error.strerror}") from error


def _check_together(files: dict[str, Path | None]) -> None:
    missing = [name for name, file in files.items() if file is None]
    if missing and len(missing) < len(files):
        raise ConfigurationError(
            f"{' and '.join(missing)} must be given too: TLS needs {', '.join(files)}"
        )
