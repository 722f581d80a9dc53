"""Certificates for the tests of TLS, signed by an authority that ends with the test."""

from pathlib import Path

import trustme

from slipstream.shared.tls import PeerTls, TransferTlsFiles, transfer_tls


class Authority:
    """Signs, and writes what it has signed into files."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self._authority = trustme.CA()
        self.ca = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(self.ca)

    def sign(self, name: str, *hosts: str) -> tuple[Path, Path]:
        """Return the files of a certificate and of its key."""
        signed = self._authority.issue_cert(*(hosts or (name,)))
        cert, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        signed.private_key_pem.write_to_path(key)
        for position, blob in enumerate(signed.cert_chain_pems):
            blob.write_to_path(cert, append=position > 0)
        return cert, key

    def files(self, name: str) -> TransferTlsFiles:
        """Return the files of a KV manager."""
        cert, key = self.sign(name)
        return TransferTlsFiles(
            transfer_tls_cert=cert, transfer_tls_key=key, transfer_tls_ca=self.ca
        )

    def peer(self, name: str) -> PeerTls:
        """Return the contexts of a KV manager."""
        found = transfer_tls(self.files(name))
        assert found is not None
        return found
