"""Certificates and keys for etcd: from files or inline, checked before the first connection (datastore §4)."""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from calico_ipam.datastore.settings import Settings
from calico_ipam.errors import InvalidInput

log = logging.getLogger(__name__)

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Identity:
    """PEM texts. Without ``ca``, the authorities of this host are trusted; ``cert`` and ``key`` go together."""

    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


def identity_of(settings: Settings) -> Identity:
    """Read and check what settings name. Raises InvalidInput naming the file or setting, never its content."""
    inline = (settings.etcd_ca_cert, settings.etcd_cert, settings.etcd_key)
    files = (settings.etcd_ca_cert_file, settings.etcd_cert_file, settings.etcd_key_file)
    if any(inline) and any(files):
        raise InvalidInput(
            "etcd certificates are given both inline and as files",
            subject="etcdCert",
            hint="Keep either etcdKey, etcdCert and etcdCACert or etcdKeyFile, etcdCertFile and etcdCACertFile.",
        )
    if any(inline):
        names = ("the inline etcd CA (etcdCACert)", "the inline etcd certificate (etcdCert)", "the inline etcdKey")
        ca, cert, key = (text.encode() or None for text in inline)
    else:
        names = (
            f"the etcd CA file {files[0]}",
            f"the etcd certificate file {files[1]}",
            f"the etcd key file {files[2]}",
        )
        ca, cert, key = (_read(path, name) if path else None for path, name in zip(files, names, strict=True))
    if (cert is None) != (key is None):
        given, missing = ("certificate", "key") if key is None else ("key", "certificate")
        raise InvalidInput(
            f"an etcd client {given} is configured without its {missing}",
            subject="ETCD_CERT_FILE",
            hint="Set both ETCD_CERT_FILE and ETCD_KEY_FILE, or neither.",
        )
    identity = Identity(ca, cert, key)
    _check(identity, names)
    _check_protocol(settings)
    return identity


def context_of(identity: Identity) -> ssl.SSLContext:
    """Return the identity for the standard library's TLS. Raises ssl.SSLError, OSError for texts that are none."""
    if identity.ca is None:
        context = ssl.create_default_context()  # reads the certificates of the whole world, which takes its time
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=_ascii(identity.ca))
    if identity.cert is not None and identity.key is not None:
        with _in_memory(identity.cert) as cert, _in_memory(identity.key) as key:
            context.load_cert_chain(cert, key, password=_no_password)
    context.set_alpn_protocols(["h2"])
    return context


def validity(pem: bytes) -> tuple[datetime, datetime] | None:
    """Return from when to when the first certificate of a text is valid; None when it cannot be read."""
    found = _PEM.search(pem)
    if found is None:
        return None
    try:
        certificate = _children(base64.b64decode(found[1]))
        fields = _children(_children(certificate[0][1])[0][1])
        if fields[0][0] == 0xA0:  # the version is optional
            fields = fields[1:]
        # serial number, signature algorithm, issuer, validity
        begin, end = _children(fields[3][1])
        return _time(*begin), _time(*end)
    except (IndexError, ValueError, binascii.Error):
        return None


def _children(der: bytes) -> list[tuple[int, bytes]]:
    """Return the (tag, content) of the values that lie side by side in DER."""
    found: list[tuple[int, bytes]] = []
    position = 0
    while position < len(der):
        tag, length = der[position], der[position + 1]
        position += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(der[position : position + size])
            position += size
        found.append((tag, der[position : position + length]))
        position += length
    return found


def _time(tag: int, text: bytes) -> datetime:
    """UTCTime has two digits for the year (1950 to 2049), GeneralizedTime four."""
    digits = text.decode("ascii").rstrip("Z")
    if tag == 0x17:
        digits = ("19" if digits[:2] >= "50" else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=UTC)


def _read(path: str, name: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"{name} cannot be read: {error.strerror or error}", subject=path, hint="Check the path and its rights."
        ) from None


def _check(identity: Identity, names: tuple[str, ...]) -> None:
    try:
        if identity.ca is not None:
            context_of(Identity(ca=identity.ca))
    except (ssl.SSLError, ValueError):
        raise InvalidInput(
            f"{names[0]} holds no certificate", subject=names[0], hint="It must be a PEM text with BEGIN CERTIFICATE."
        ) from None
    if identity.cert is None:
        return
    try:
        context_of(Identity(cert=identity.cert, key=identity.key))
    except ValueError:
        raise InvalidInput(
            f"{names[2]} is encrypted", subject=names[2], hint="Decrypt it: nobody can be asked for its password here."
        ) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason, hint = f"{names[2]} does not belong to {names[1]}", "Take the key the certificate was made with."
        else:
            reason = f"{names[1]} and {names[2]} hold no certificate with its key"
            hint = "Both must be PEM texts: BEGIN CERTIFICATE, and BEGIN PRIVATE KEY."
        raise InvalidInput(reason, subject=names[1], hint=hint) from None


def _check_protocol(settings: Settings) -> None:
    """Say what cannot be had: gRPC offers TLS 1.2 and 1.3 with ciphers of its own choice, and takes no wishes."""
    if settings.tls_min_version not in ("", "1.2", "1.3"):
        raise InvalidInput(
            f"TLS_MIN_VERSION has the value {settings.tls_min_version!r}",
            subject="TLS_MIN_VERSION",
            hint="Write 1.2 or 1.3.",
        )
    if settings.tls_min_version == "1.3" or settings.tls_cipher_suites:
        log.warning(
            "TLS_MIN_VERSION and TLS_CIPHER_SUITES cannot be enforced on this side: connections to etcd use TLS 1.2 or "
            "newer and the best cipher that etcd offers; restrict them there (--cipher-suites)"
        )


def _ascii(pem: bytes) -> str:
    text = pem.decode("ascii", "ignore")
    if not text.strip():
        raise ValueError("empty")  # OpenSSL would take it for "no further certificates"
    return text


def _no_password() -> str:
    raise ValueError("the key is encrypted")


@contextmanager
def _in_memory(text: bytes) -> Iterator[str]:
    """Lend a text as a file that no other process can find: OpenSSL takes paths only, and a key belongs on no disk."""
    descriptor = os.memfd_create("pem")
    try:
        os.write(descriptor, text)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
