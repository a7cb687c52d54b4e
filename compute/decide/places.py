"""Where hosts are: racks, addresses, and whose links are all down. As each says of itself. Pure."""

from __future__ import annotations

from telemetry.messages.documents import HostDocument


class HostPlaces:
    """What hosts' documents say of them.

    Attributes:
        racks: host → its rack, "" where it has none.
        addresses: host → those of its links.
        linkless: hosts whose own fabricd says that all of their links are down.
    """

    def __init__(self) -> None:
        self.racks: dict[str, str] = {}
        self.addresses: dict[str, frozenset[str]] = {}
        self.linkless: set[str] = set()

    def update(self, host: str, document: HostDocument) -> None:
        """Its newest document."""
        self.racks[host] = document.rack
        self.addresses[host] = frozenset(
            address for link in document.links for address in link.addresses
        )
        if document.links and all(link.state == "down" for link in document.links):
            self.linkless.add(host)
        else:
            self.linkless.discard(host)

    def remove(self, host: str) -> None:
        """Its document was taken away."""
        self.racks.pop(host, None)
        self.addresses.pop(host, None)
        self.linkless.discard(host)
