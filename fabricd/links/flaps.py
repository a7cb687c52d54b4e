"""Counts flaps exactly, over restarts of the prober and of the daemon. Pure.

The kernel counts carrier losses of a device (``carrier_down_count``, from 0 when it is made). A
`FlapLedger` remembers the last count accounted for of each (boot, ifindex, netdev) and gives the
difference. The daemon puts the count into the FLAP row itself, so that row and count are stored in
one transaction: after ``kill -9`` the newest row says what is accounted for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Mark:
    """The last count accounted for."""

    ifindex: int
    down_count: int
    carrier: bool


class FlapLedger:
    """Last counts by netdev, of this boot."""

    def __init__(self, boot_id: str) -> None:
        self.boot_id = boot_id
        self._marks: dict[str, Mark] = {}
        self._told: dict[str, int] = {}
        """Losses told of each in this boot: of a row and a document, whichever says more is newer.
        The counts do not say it: a carrier comes back without one, and a device goes without."""
        self._unseen: set[str] = set()
        """Devices whose mark is an earlier daemon's."""

    def observe(self, netdev: str, ifindex: int, down_count: int, *, carrier: bool) -> int:
        """Take a reading; returns how many carrier losses are new.

        A device never seen is a starting point and gives 0. A device with another ifindex is a new
        one: its predecessor vanished, which is one loss if that had carrier and none since.
        """
        old = self._marks.get(netdev)
        self._unseen.discard(netdev)
        self._marks[netdev] = Mark(ifindex, down_count, carrier)
        if old is None:
            return self._tell(netdev, 0)
        if old.ifindex != ifindex:
            return self._tell(netdev, 1 if old.carrier else 0)
        return self._tell(netdev, max(0, down_count - old.down_count))

    def vanished(self, netdev: str) -> int:
        """The device is gone; returns 1 when that took away a carrier."""
        old = self._marks.get(netdev)
        if old is None or not old.carrier:
            return 0
        self._marks[netdev] = Mark(old.ifindex, old.down_count, carrier=False)
        return self._tell(netdev, 1)

    def mark(self, netdev: str) -> Mark | None:
        """The last count of a device."""
        return self._marks.get(netdev)

    def unseen(self, netdev: str) -> bool:
        """Whether its mark is an earlier daemon's, and no reading has confirmed it."""
        return netdev in self._unseen

    def forget(self, netdev: str) -> None:
        """Its mark is of another device: the next reading is a starting point."""
        self._marks.pop(netdev, None)
        self._unseen.discard(netdev)

    def told(self, netdev: str) -> int:
        """Losses told of a device so far, for the row that tells of the last of them."""
        return self._told.get(netdev, 0)

    def save(self) -> dict[str, Any]:
        """A JSON document for `restore`."""
        return {
            "boot_id": self.boot_id,
            "marks": {
                name: [mark.ifindex, mark.down_count, mark.carrier]
                for name, mark in self._marks.items()
            },
            "told": dict(self._told),
        }

    def restore(self, document: dict[str, Any]) -> bool:
        """Take over a saved document; False when it is of another boot (counts began anew).

        Raises:
            KeyError, TypeError, ValueError: not such a document; nothing was taken over.
        """
        if document["boot_id"] != self.boot_id:
            return False
        marks = {
            str(name): Mark(int(ifindex), int(count), bool(carrier))
            for name, (ifindex, count, carrier) in document["marks"].items()
        }
        told = {str(name): int(count) for name, count in document.get("told", {}).items()}
        self._marks |= marks
        self._unseen |= marks.keys()
        self._told |= told
        return True

    def restore_row(
        self, netdev: str, ifindex: int, down_count: int, *, carrier: bool, told: int | None = None
    ) -> None:
        """Take over what a FLAP row of this boot says, if it is newer than what is known.

        ``told``: as of `told` when the row was made; None: an older daemon's row, which does not
        say. Its count is then what there is to go by.
        """
        old = self._marks.get(netdev)
        if old is None:
            newer = True
        elif told is not None and netdev in self._told:
            newer = told > self._told[netdev]
        else:
            newer = old.ifindex != ifindex or old.down_count < down_count
        if newer:
            self._unseen.add(netdev)
            self._marks[netdev] = Mark(ifindex, down_count, carrier)
            if told is not None:
                self._told[netdev] = told

    def _tell(self, netdev: str, losses: int) -> int:
        # Zero as well: a document that knows of the device then says so.
        self._told[netdev] = self._told.get(netdev, 0) + losses
        return losses
