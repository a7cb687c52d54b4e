"""Ends the connections that revoked clients have still, at a broker on this machine.

A broker looks at certificates when somebody connects, and ends no connection for a revocation. But
ours knows a client by its certificate's name, and has one connection for each name: who connects
with it takes the place of who is there. So the authority makes a certificate of that name for a
moment, connects with it once, and goes. The key is on no disk but in a directory of the caller's,
for as long as that takes.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from compute.certificates import Authority
from compute.mosquitto import BrokerFiles, local_listener, values_of
from telemetry.service import durable

AFTER_S = (0.3, 0.7, 1.5)
"""Pauses before each try: the broker may not have read its revocations before the first, and then
who was thrown out has come back."""
ANSWER_S = 5.0
MOST_BYTES = 1 << 20
_CONNECT, _CONNACK, _DISCONNECT = 0x10, 0x20, b"\xe0\x00"
_CLEAN_SESSION, _KEEPALIVE_S = 0x02, 10


def expel(authority: Authority, files: BrokerFiles, names: Sequence[str]) -> str:
    """Take the place of these clients and leave it.

    Returns:
        Why a connection of theirs may go on; "": there is none, or no broker runs here.
    """
    where = listener(files)
    if where is None:
        return ""
    problems: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        contexts = {name: _context(authority, name, stack) for name in names}
        for pause in AFTER_S:
            time.sleep(pause)
            for name, context in contexts.items():
                problems.pop(name, None)
                try:
                    _visit(where, context, name)
                except ConnectionRefusedError:
                    return ""  # nobody listens: nobody is connected
                except OSError as error:
                    problems[name] = str(error)
    return "; ".join(f"{name}: {why}" for name, why in problems.items())


def listener(files: BrokerFiles) -> tuple[str, int] | None:
    """Where to reach the broker from this machine; None: its configuration does not say."""
    try:
        return local_listener(values_of(durable.require_text(files.configuration, MOST_BYTES)))
    except (OSError, ValueError):
        return None


def _context(authority: Authority, name: str, stack: contextlib.ExitStack) -> ssl.SSLContext:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fabric-expel-")))
    certificate, key = authority.for_a_moment(name).write(directory)
    context = ssl.create_default_context(cafile=authority.certificate_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # The authority has signed it, and it is on this machine.
    context.load_cert_chain(certificate, key)
    return context


def _visit(where: tuple[str, int], context: ssl.SSLContext, name: str) -> None:
    """Connect as ``name`` and disconnect (MQTT 3.1.1). Raises ``OSError``."""
    identifier = name.encode()
    body = b"\x00\x04MQTT\x04" + bytes([_CLEAN_SESSION, 0, _KEEPALIVE_S])
    body += len(identifier).to_bytes(2, "big") + identifier
    with (
        socket.create_connection(where, ANSWER_S) as plain,
        context.wrap_socket(plain, server_hostname=where[0]) as sock,
    ):
        sock.sendall(bytes([_CONNECT, len(body)]) + body)
        answer = b""
        while len(answer) < 4 and (part := sock.recv(4 - len(answer))):
            answer += part
        if len(answer) < 4 or answer[0] != _CONNACK or answer[3]:
            raise OSError(f"the broker answers {answer.hex() or 'nothing'}")
        sock.sendall(_DISCONNECT)
