"""``rdma statistic``: a port's counters over RDMA netlink (RDMA_NLDEV_CMD_STAT_GET).

The same counters as ``hw_counters``, in one message instead of a file each, straight from the
device (no ``lifespan``), and with those of queue pairs that are bound to counters of their own,
which sysfs leaves out (drivers/infiniband/core/nldev.c, stat_get_doit_default_counter).
"""

from __future__ import annotations

from pathlib import Path

from telemetry.counters.ib import SYSFS
from telemetry.counters.messages import (
    RDMA_NL_NLDEV,
    RDMA_NLDEV_CMD_GET,
    RDMA_NLDEV_CMD_STAT_GET,
    rdma_nldev_msg,
)
from telemetry.counters.nlattr import Attributes, decode, first, layout
from telemetry.counters.nlsocket import NETLINK_RDMA, Netlink, encoded
from telemetry.counters.polled import PERIOD_NS, Polled, SourceOff
from telemetry.counters.table import Table
from telemetry.counters.tables.rdma import recognise
from telemetry.counters.types import CounterError, Sample

_LAYOUT = layout(rdma_nldev_msg)


def kind(command: int) -> int:
    """The netlink message type of a command (RDMA_NL_GET_TYPE)."""
    return RDMA_NL_NLDEV << 10 | command


def hwcounters(attributes: Attributes) -> dict[str, int]:
    """Native name → value of a STAT_GET reply.

    Raises:
        CounterError: an entry lacks its name or value, or a name comes twice.
    """
    out: dict[str, int] = {}
    for _, entry in first(attributes, "RDMA_NLDEV_ATTR_STAT_HWCOUNTERS") or ():
        fields = dict(entry)
        name = fields.get("RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME")
        value = fields.get("RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE")
        if not name or value is None or name in out:
            raise CounterError(f"rdma statistic: entry {name!r} = {value}")
        out[name] = value
    return out


class RdmaStatistic(Polled):
    """The counters of one port of a verbs device."""

    source = "rdma_stat"

    def __init__(
        self,
        device: str,
        port: int,
        link: Netlink | None = None,
        *,
        sysfs: Path = SYSFS,
        period_ns: int = PERIOD_NS,
    ) -> None:
        super().__init__(f"{device}/{port}", period_ns)
        self._name, self._port, self._sysfs = device, port, sysfs
        self._link = link or Netlink(NETLINK_RDMA)
        self._index: int | None = None
        self._request = b""
        self._names: frozenset[str] = frozenset()
        self._table: Table | None = None

    @classmethod
    def open(
        cls,
        device: str,
        port: int,
        link: Netlink | None = None,
        *,
        sysfs: Path = SYSFS,
        period_ns: int = PERIOD_NS,
    ) -> RdmaStatistic:
        """A source for a port, there or not; sources of one thread may share the socket."""
        return cls(device, port, link, sysfs=sysfs, period_ns=period_ns)

    def sample(self, now_ns: int) -> Sample:
        """See `Polled.sample`."""
        attributes = self._ask()
        if first(attributes, "RDMA_NLDEV_ATTR_DEV_NAME") != self._name:
            self._index = None  # another device has got the index
            attributes = self._ask()
            if first(attributes, "RDMA_NLDEV_ATTR_DEV_NAME") != self._name:
                raise SourceOff("no such device")
        natives = hwcounters(attributes)
        if natives.keys() != self._names:
            self._names, self._table = frozenset(natives), recognise(natives)
        table = self._table
        if table is None:
            raise SourceOff(
                "no table for a driver with these counters" if natives else "no counters"
            )
        values, shapes = table.canonical(natives)
        return Sample(
            self.source,
            self.device,
            (self._index, self._born()),
            now_ns,
            values=values,
            shapes=shapes,
            info={"driver": table.driver},
        )

    def close(self) -> None:
        """Close the socket."""
        self._link.close()

    def _ask(self) -> Attributes:
        if self._index is None:
            self._index = self._find()
            message = rdma_nldev_msg()
            message["attrs"].append(["RDMA_NLDEV_ATTR_DEV_INDEX", self._index])
            message["attrs"].append(["RDMA_NLDEV_ATTR_PORT_INDEX", self._port])
            self._request = encoded(message)
        try:
            for reply in self._link.ask(kind(RDMA_NLDEV_CMD_STAT_GET), self._request):
                return decode(reply.payload, _LAYOUT)
        except OSError:
            self._index = None
            raise
        raise CounterError("rdma statistic: no reply")

    def _born(self) -> int:
        """Inode of the device's folder; a reloaded driver's device may get its old index again."""
        try:
            return (self._sysfs / self._name).stat().st_ino
        except OSError:
            return 0

    def _find(self) -> int:
        answer = self._link.ask(kind(RDMA_NLDEV_CMD_GET), b"", dump=True)
        for message in answer:
            attributes = decode(message.payload, _LAYOUT)
            if first(attributes, "RDMA_NLDEV_ATTR_DEV_NAME") == self._name:
                found = first(attributes, "RDMA_NLDEV_ATTR_DEV_INDEX")
                if isinstance(found, int):
                    return found
        raise SourceOff("no such device")
