"""A rail that loses its addresses: an operator's mistake, a DHCP lease that ran out."""

from __future__ import annotations

from lab.faults.base import Fault
from lab.faults.holds import HoldTable
from lab.network import build
from lab.topology import RailTarget, Target


class AddressRemoved(Fault):
    """``ip addr del`` of all addresses of a rail; link and carrier stay up.

    The kernel drops the routes with them and tells no connection: what is sent finds no way out,
    what arrives is nobody's. At the end addresses and routes come back.
    """

    kind = "address"
    targets = (RailTarget,)

    def _prepare(self, target: Target) -> None:
        assert isinstance(target, RailTarget)
        self._where = target
        self._table = HoldTable(self.site.dir.holds)

    def _row(self) -> int:
        return self.site.address_row(self._where.host, self._where.rail)

    def _set(self, *, present: bool) -> None:
        where = self._where
        ifname = f"rail{where.rail}"
        build.set_addresses(self.site.topology, where.host, ifname, present=present)

    def _start(self) -> None:
        with self._table.locked():
            if self._table.take(self._row(), self.holder):
                self._set(present=False)

    def _end(self) -> None:
        with self._table.locked():
            if self._table.release(self._row(), self.holder):
                self._set(present=True)

    def close(self) -> None:
        """Close the table."""
        self._table.close()
