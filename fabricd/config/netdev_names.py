"""Names of network devices: which ones the kernel takes, and the kernel's name of an altname.

A device may have altnames beside its name (ip-link(8), ``altname``). Sockets, drivers and the
plugin go by the kernel's name, so that is what a configuration is turned into.
"""

from __future__ import annotations

import socket

IFNAMSIZ = 16  # linux/if.h, with the final NUL
_REFUSED = frozenset(b"/:\0 \t\n\v\f\r\xa0")
"""What net/core/dev.c calls a space in Latin-1, and ``/`` and ``:``."""


def is_netdev_name(name: str) -> bool:
    """Whether a device may have that name (``dev_valid_name`` in net/core/dev.c)."""
    data = name.encode("utf-8", "surrogateescape")
    return 0 < len(data) < IFNAMSIZ and name not in (".", "..") and not _REFUSED & set(data)


def kernel_name(name: str) -> str:
    """The kernel's name of the device that has this name or altname; ``name`` where none has."""
    try:
        return socket.if_indextoname(socket.if_nametoindex(name))
    except (OSError, ValueError):
        return name
