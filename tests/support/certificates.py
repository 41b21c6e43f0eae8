"""A certificate authority of a test's own, and what it signs for loopback."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


def loopback_certificates(directory: Path) -> tuple[Path, Path, Path]:
    """Files in PEM: the authority's certificate, a certificate for 127.0.0.1, and its key."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])
    root = (
        _builder(authority, authority, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    server = (
        _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a server")]), authority, key)
        .add_extension(addresses, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    files = directory / "authority.pem", directory / "server.pem", directory / "server.key"
    for file, certificate in zip(files, (root, server), strict=False):
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[2].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
    )
