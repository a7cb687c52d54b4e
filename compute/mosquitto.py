"""A hardened mosquitto: its configuration and access list. Pure: texts only.

A host writes the five kinds of topics below its own name. It reads its own orders, and the states
of the jobs in which it has a part. It reads of other hosts only who they are and whether they are
there. A fabric-compute writes its own topics only, an operator the stop topic. Everything else is
refused, and everything that anonymous clients ask for. One exception: a fabric-compute writes jobs'
documents of hosts, to clear those that are beyond a host's share (`compute.quota`). A client's id
is its certificate's name, whatever it claims: nobody takes the connection of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from telemetry.messages.envelope import MAX_BYTES
from telemetry.messages.topics import DEFAULT_PREFIX

PACKET_BYTES = MAX_BYTES + 65_536
"""A message, its topic and properties."""
QUEUED = 100_000
"""Messages for one client: a fabric-compute gets all retained ones of 2,000 hosts at once."""
QUEUED_BYTES = 128 << 20
"""The same in bytes, of what is to be acknowledged."""
MEMORY_MIB = 1024
"""Of messages, sessions and queues. TLS and the allocator need as much again at 2,000 clients: so
``MemoryMax`` of the unit is twice as much. Past it the broker ends the connection that asks for
more, which is the one that floods; past ``MemoryMax`` the kernel would end the broker."""


KEEPER = "fabric-broker.keeper"
"""The client that keeps hosts to their shares while no fabric-compute does."""
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - listens there, as we are told


@dataclass(frozen=True)
class BrokerFiles:
    """Where everything of a broker lies, below ``directory``."""

    directory: Path

    @property
    def configuration(self) -> Path:
        """For ``mosquitto -c``."""
        return self.directory / "mosquitto.conf"

    @property
    def access(self) -> Path:
        """Who may read and write which topics."""
        return self.directory / "access.acl"

    @property
    def data(self) -> Path:
        """Retained messages and sessions."""
        return self.directory / "data"

    @property
    def keeper_certificate(self) -> Path:
        """Of the client that keeps hosts to their shares."""
        return self.directory / "keeper.pem"

    @property
    def keeper_key(self) -> Path:
        """Its key."""
        return self.directory / "keeper.key"

    @property
    def pid(self) -> Path:
        """The process id of a running broker."""
        return self.data / "mosquitto.pid"


def configuration(
    files: BrokerFiles, address: str, port: int, *, certificate: Path, key: Path, user: str = "",
    memory_mib: int = MEMORY_MIB,
) -> str:  # fmt: skip
    """The text of ``mosquitto.conf``. ``user``: whom a broker that root starts becomes."""
    where = files.directory
    lines = [
        "# Written by fabric-compute broker; changes are lost.",
        f"listener {port} {address}",
        f"cafile {where / 'ca.pem'}",
        f"crlfile {where / 'crl.pem'}",
        f"certfile {certificate}",
        f"keyfile {key}",
        "tls_version tlsv1.2",
        "require_certificate true",
        "use_identity_as_username true",
        "use_username_as_clientid true",
        "allow_anonymous false",
        f"acl_file {files.access}",
        "max_connections 10000",
        f"max_packet_size {PACKET_BYTES}",
        f"message_size_limit {MAX_BYTES}",
        f"memory_limit {memory_mib << 20}",
        f"max_queued_messages {QUEUED}",
        f"max_queued_bytes {QUEUED_BYTES}",
        "max_inflight_messages 20",
        "max_keepalive 600",
        "persistent_client_expiration 14d",
        "persistence true",
        f"persistence_location {files.data}/",
        "autosave_interval 30",
        "sys_interval 0",
        "set_tcp_nodelay true",
        f"pid_file {files.pid}",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "log_type information",
        "connection_messages true",
    ]
    if user:
        lines.append(f"user {user}")
    return "\n".join(lines) + "\n"


def local_address(address: str) -> str:
    """Where a broker that listens there is reached from its own machine."""
    return _ANYWHERE.get(address, address)


def values_of(text: str) -> dict[str, str]:
    """What a ``mosquitto.conf`` of ours says, by its first word."""
    lines = (line.partition(" ") for line in text.splitlines() if line[:1] != "#")
    return {word: value for word, _, value in lines}


def local_listener(values: Mapping[str, str]) -> tuple[str, int] | None:
    """Address and port for clients on the same machine; None: ``values`` do not say."""
    port, _, address = values.get("listener", "").partition(" ")
    return (local_address(address), int(port)) if address and port.isdecimal() else None


def prefix_of(access: str) -> str:
    """The first levels of all topics, by an access list of ours; "": it does not say."""
    begin, end = "pattern write ", "/host/%u/status"
    for line in access.splitlines():
        if line.startswith(begin) and line.endswith(end):
            return line[len(begin) : -len(end)]
    return ""


def access_list(
    computes: Sequence[str],
    operators: Sequence[str],
    prefix: str = DEFAULT_PREFIX,
    revoked: Sequence[str] = (),
    events: Sequence[str] = (),
    probes: Sequence[str] = (),
) -> str:
    """The text of the access list. ``%u`` is a client's common name.

    Patterns hold for every client. So computes and operators are denied what a host of their name
    could do. ``events`` and ``probes``: a fabric-compute's further connections, who write nothing.
    ``revoked``: clients without a valid certificate. The broker ends no connection for a
    revocation: what such a client says on one that it still has reaches nobody, and it hears
    nothing.
    """
    lines = [
        "# Written by fabric-compute broker; changes are lost.",
        "# Hosts.",
        f"pattern write {prefix}/host/%u/status",
        f"pattern write {prefix}/host/%u/document",
        f"pattern write {prefix}/host/%u/observations",
        f"pattern write {prefix}/host/%u/event",
        f"pattern write {prefix}/host/%u/job/+",
        f"pattern read {prefix}/compute/+/order/%u",
        f"pattern read {prefix}/compute/+/view/%u",
        f"pattern read {prefix}/compute/+/status",
        f"pattern read {prefix}/host/+/status",
        f"pattern read {prefix}/host/+/document",
        f"pattern read {prefix}/stop",
    ]
    for name in computes:
        lines += [
            "",
            "# A fabric-compute.",
            f"user {name}",
            f"topic deny {prefix}/host/{name}/#",
            f"topic readwrite {prefix}/compute/{name}/#",
            f"topic write {prefix}/host/+/job/+",
            f"topic read {prefix}/host/#",
        ]
    for name in operators:
        lines += [
            "",
            "# An operator.",
            f"user {name}",
            f"topic deny {prefix}/host/{name}/#",
            f"topic readwrite {prefix}/stop",
            f"topic read {prefix}/compute/+/job/+",
        ]
    for name in events:
        lines += ["", "# Events for a fabric-compute.", f"user {name}"]
        lines += [f"topic deny {prefix}/host/{name}/#", f"topic read {prefix}/host/+/event"]
    for name in probes:
        lines += ["", "# Tries whether client ids are bound.", f"user {name}"]
        lines += [f"topic deny {prefix}/host/{name}/#"]
    lines += ["", "# Keeps hosts to their shares.", f"user {KEEPER}"]
    lines += [f"topic deny {prefix}/host/{KEEPER}/#", f"topic readwrite {prefix}/host/+/job/+"]
    for name in revoked:
        lines += ["", "# Revoked.", f"user {name}", "topic deny #"]
    return "\n".join(lines) + "\n"
