"""Why a link is in its state, in one text for all views. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fabricd.runtime.host import Host
    from fabricd.state.model import Link
    from telemetry.counters.linkstate import DownReason


def reason(host: Host, link: Link) -> str:
    """Why it is in its state; of an interface that is missing that, for there is no other.

    Where there is no carrier, also why, if the NIC's driver says it.
    """
    if missing := host.detectors.interfaces.missing.get(link.netdev):
        return missing
    found = down_reason(host, link)
    return ": ".join(text for text in (link.health.reason, found.text if found else "") if text)


def down_reason(host: Host, link: Link) -> DownReason | None:
    """Why it has no carrier; None: it has, or its driver does not say."""
    return host.nics.down.get(link.netdev) if link.carrier is False else None
