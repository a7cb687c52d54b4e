"""The TLS context of a connection to the broker."""

from __future__ import annotations

import ssl

from telemetry.broker.settings import BrokerSettings, BrokerSettingsError


class _ClosingSocket(ssl.SSLSocket):
    """Closes itself when its handshake fails: paho forgets such a socket and leaves it open."""

    def do_handshake(self, block: bool = False) -> None:
        """Shake hands. Raises ``OSError``: the socket is closed then."""
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except BaseException:
            self.close()
            raise


def tls_context(settings: BrokerSettings) -> ssl.SSLContext:
    """TLS 1.2 or newer, the broker's certificate and name verified.

    Raises:
        BrokerSettingsError: a file cannot be read, or has no certificate or key of that form.
    """
    for file in (settings.ca_file, settings.cert_file, settings.key_file):
        try:
            if file is not None:
                file.open("rb").close()
        except OSError as error:
            raise BrokerSettingsError(f"{file}: {error.strerror}") from None
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except ssl.SSLError as error:
        raise BrokerSettingsError(f"{settings.ca_file}: no certificates: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = _ClosingSocket
    if settings.cert_file is not None:
        try:
            context.load_cert_chain(settings.cert_file, settings.key_file, password="")
        except (ssl.SSLError, ValueError) as error:
            pair = f"{settings.cert_file}, {settings.key_file or 'key in the same file'}"
            raise BrokerSettingsError(f"{pair}: no certificate with its key: {error}") from None
    return context
