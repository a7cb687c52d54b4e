"""Names of hosts that are known by their number: by the daemon, which knows its peers."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fabricd.cli import client
from fabricd.probes.wire_id import host_id

LIMIT_S = 1.0
"""For each of two answers: without them a number is shown."""


def host_names(socket: Path) -> dict[int, str]:
    """Number on the wire → name; empty: no daemon answers.

    Args:
        socket: the daemon's.
    """
    known: set[str] = set()
    with contextlib.suppress(client.DaemonError, OSError, KeyError, TypeError):
        known.add(client.request(socket, {"op": "status"}, limit_s=LIMIT_S)["host"])
        for link in client.request(socket, {"op": "links"}, limit_s=LIMIT_S):
            known |= {path["peer"] for path in link["paths"]}
    return {host_id(name): name for name in known}
