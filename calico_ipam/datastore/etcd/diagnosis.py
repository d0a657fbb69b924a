"""Why an endpoint cannot be used: looked at once more with the standard library, whose errors say more than gRPC's.

Only run when a call has failed for good and the handshake was the reason.
"""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime

from calico_ipam.datastore.etcd.endpoints import Endpoint
from calico_ipam.datastore.etcd.failures import Failure
from calico_ipam.datastore.etcd.identity import Identity, context_of, validity
from calico_ipam.errors import IPAMError, StoreError, Unauthorized

_EXPIRED, _NOT_YET, _NOT_THIS_HOST, _NOT_THIS_ADDRESS = 10, 9, 62, 64  # OpenSSL's X509_V_ERR_…


def diagnosed(
    endpoint: Endpoint, secure: bool, identity: Identity, failure: Failure, seconds: float
) -> tuple[str, IPAMError | None]:
    """Return what is wrong with an endpoint in words, and an error if only a change of settings can help."""
    error: IPAMError | None = None
    if seconds > 0 and secure and failure.tls:
        error = _handshake(endpoint, identity, seconds)
    elif seconds > 0 and not secure and "closed" in failure.short and _speaks_tls(endpoint, seconds):
        error = StoreError(
            f"{endpoint} speaks TLS, but its endpoint is configured without",
            subject=str(endpoint),
            hint="Write https:// in front of it, and set ETCD_CA_CERT_FILE.",
        )
    if error is not None:
        return error.reason or str(error), error
    return f"{endpoint} {failure.short}", None


def _handshake(endpoint: Endpoint, identity: Identity, seconds: float) -> IPAMError | None:
    try:
        with socket.create_connection((endpoint.host, endpoint.port), timeout=seconds) as connection:
            return _greet(endpoint, identity, connection)
    except OSError:
        return None


def _greet(endpoint: Endpoint, identity: Identity, connection: socket.socket) -> IPAMError | None:
    try:
        with context_of(identity).wrap_socket(connection, server_hostname=endpoint.host) as secured:
            # A server of TLS 1.3 looks at our certificate only after the handshake is over for us. It speaks first
            # only to complain; to say something here could overwrite its complaint with a broken pipe.
            secured.recv(1)
            return None
    except ssl.SSLCertVerificationError as error:
        return _of_the_server(endpoint, identity, error)
    except ssl.SSLError as error:
        reason = error.reason or ""
        if isinstance(error, ssl.SSLEOFError):
            return _no_tls(endpoint)
        if "ALERT" in reason and ("CERT" in reason or "UNKNOWN_CA" in reason or "HANDSHAKE" in reason):
            return _of_ours(endpoint, identity, reason)
        if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
            return _no_tls(endpoint)
        if "PROTOCOL" in reason or "VERSION" in reason or "CIPHER" in reason:
            return StoreError(
                f"{endpoint} and we have no version or cipher of TLS in common ({reason})",
                subject=str(endpoint),
                hint="etcd must offer TLS 1.2 or 1.3.",
            )
        return None
    except ConnectionError:
        return _no_tls(endpoint)
    except TimeoutError:
        return None  # it has nothing against us


def _no_tls(endpoint: Endpoint) -> IPAMError:
    return StoreError(
        f"{endpoint} does not speak TLS, but its endpoint is configured with it",
        subject=str(endpoint),
        hint="Write http:// in front of it; without a scheme an etcd endpoint means https.",
    )


def _of_the_server(endpoint: Endpoint, identity: Identity, error: ssl.SSLCertVerificationError) -> IPAMError:
    match error.verify_code:
        case code if code == _EXPIRED:
            reason, hint = "has expired", "Renew etcd's certificate; also check the clock of this host."
        case code if code == _NOT_YET:
            reason, hint = "is not valid yet", "Check the clock of this host."
        case code if code in (_NOT_THIS_HOST, _NOT_THIS_ADDRESS):
            reason = f"is not for the name {endpoint.host}"
            hint = "Use a name or address that the certificate holds, or have it made anew with this one."
        case _:
            trusted = "the configured CA" if identity.ca is not None else "an authority that this host trusts"
            reason = f"is not signed by {trusted} ({error.verify_message})"
            hint = "Set ETCD_CA_CERT_FILE to the certificate of the CA that signed etcd's."
    return StoreError(f"the certificate of etcd at {endpoint} {reason}", subject=str(endpoint), hint=hint)


def _of_ours(endpoint: Endpoint, identity: Identity, alert: str) -> IPAMError:
    setting = "ETCD_CERT_FILE and ETCD_KEY_FILE"
    if identity.cert is None:
        return Unauthorized(
            f"etcd at {endpoint} wants a client certificate and none is configured", hint=f"Set {setting}."
        )
    dates = validity(identity.cert)
    now = datetime.now(UTC)
    if dates is not None and dates[1] < now:
        return Unauthorized(
            f"our client certificate for etcd at {endpoint} has expired on {dates[1]:%Y-%m-%d}",
            hint=f"Renew it ({setting}).",
        )
    if dates is not None and dates[0] > now:
        return Unauthorized(
            f"our client certificate for etcd at {endpoint} is not valid before {dates[0]:%Y-%m-%d}",
            hint="Check the clock of this host.",
        )
    told = alert.removeprefix("SSLV3_").removeprefix("TLSV1_").removeprefix("TLSV13_").lower().replace("_", " ")
    return Unauthorized(
        f"etcd at {endpoint} does not accept our client certificate ({told})",
        hint=f"It must be signed by etcd's --trusted-ca-file: check {setting}.",
    )


def _speaks_tls(endpoint: Endpoint, seconds: float) -> bool:
    """Tell whether something answers a TLS greeting, whoever it is."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing but a greeting is sent
    try:
        with (
            socket.create_connection((endpoint.host, endpoint.port), timeout=seconds) as connection,
            context.wrap_socket(connection, server_hostname=endpoint.host),
        ):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
