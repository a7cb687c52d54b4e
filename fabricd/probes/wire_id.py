"""The number by which a host is known in probes. Pure."""

from __future__ import annotations

import hashlib


def host_id(name: str) -> int:
    """A host's number on the wire: 32 bits of BLAKE2s of its name, never 0.

    Of 4,096 hosts two have the same one with a chance of 1 in 500, which is refused
    (`fabricd.config.peer_checks`, `fabricd.escalate.peers`): one needs another name.
    """
    digest = hashlib.blake2s(name.encode(), digest_size=4, person=b"fabhost").digest()
    return int.from_bytes(digest, "little") or 1
