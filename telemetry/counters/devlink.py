"""devlink health reporters: what a driver found wrong with its device, and how often it recovered.

Documentation/networking/devlink/devlink-health.rst; attributes of include/uapi/linux/devlink.h.
pyroute2 has the message but not the dump of ``DEVLINK_CMD_HEALTH_REPORTER_GET``.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST
from pyroute2.netlink.devlink import (
    DEVLINK_CMD_HEALTH_REPORTER_GET,
    DevlinkSocket,
    devlinkcmd,
)
from pyroute2.netlink.exceptions import NetlinkError

from telemetry.counters.types import CounterError, Sample, Status

_HEALTHY, _ERROR = 0, 1
"""enum devlink_health_reporter_state."""
_MAX_COUNT = 1 << 64
_SYSFS = Path("/sys/class/net")


@dataclass(frozen=True, slots=True)
class Reporter:
    """One health reporter of a device, or of one of its ports.

    Attributes:
        device: ``pci/0000:3b:00.0``.
        port: index; None: the device's own.
        netdev: of the port, when the kernel names it.
        healthy: whether its last event was a recovery.
        errors, recoveries: since the driver was loaded.
    """

    device: str
    port: int | None
    netdev: str
    name: str
    healthy: bool
    errors: int
    recoveries: int


def reporter(attributes: Iterable[tuple[str, Any]]) -> Reporter:
    """From the attributes of one message.

    Raises:
        CounterError: something is missing, or not what it should be.
    """
    top = dict(attributes)
    nested = top.get("DEVLINK_ATTR_HEALTH_REPORTER")
    if nested is None:
        raise CounterError("a devlink health message without a reporter")
    inner = dict(nested["attrs"] if hasattr(nested, "keys") else nested)
    state = _number(inner, "DEVLINK_ATTR_HEALTH_REPORTER_STATE", 256)
    if state not in (_HEALTHY, _ERROR):
        raise CounterError(f"devlink health state {state} is not known")
    port = top.get("DEVLINK_ATTR_PORT_INDEX")
    if port is not None:
        port = _number(top, "DEVLINK_ATTR_PORT_INDEX", 1 << 32)
    bus, device = _word(top, "DEVLINK_ATTR_BUS_NAME"), _word(top, "DEVLINK_ATTR_DEV_NAME")
    return Reporter(
        device=f"{bus}/{device}",
        port=port,
        netdev=str(top.get("DEVLINK_ATTR_PORT_NETDEV_NAME") or ""),
        name=_word(inner, "DEVLINK_ATTR_HEALTH_REPORTER_NAME"),
        healthy=state == _HEALTHY,
        errors=_number(inner, "DEVLINK_ATTR_HEALTH_REPORTER_ERR_COUNT", _MAX_COUNT),
        recoveries=_number(inner, "DEVLINK_ATTR_HEALTH_REPORTER_RECOVER_COUNT", _MAX_COUNT),
    )


def _word(attributes: dict[str, Any], name: str) -> str:
    value = attributes.get(name)
    if not isinstance(value, str) or not value or len(value) > 255:
        raise CounterError(f"{name} of a devlink health message is {value!r}"[:120])
    return value


def _number(attributes: dict[str, Any], name: str, limit: int) -> int:
    value = attributes.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
        raise CounterError(f"{name} of a devlink health message is {value!r}"[:120])
    return value


class HealthDump:
    """All reporters of the machine by one generic netlink dump.

    Raises:
        OSError: the kernel has no devlink.
    """

    def __init__(self) -> None:
        self._socket = DevlinkSocket()
        try:
            self._socket.bind()
        except NetlinkError as error:
            self._socket.close()
            raise OSError(abs(error.code), "the kernel has no devlink") from error

    def read(self) -> list[Reporter]:
        """Every reporter now.

        Raises:
            OSError: the kernel refuses.
            CounterError: an answer is not what it should be.
        """
        message = devlinkcmd()
        message["cmd"] = DEVLINK_CMD_HEALTH_REPORTER_GET
        message["version"] = 1
        try:
            replies = tuple(
                self._socket.nlm_request(
                    message, msg_type=self._socket.prid, msg_flags=NLM_F_REQUEST | NLM_F_DUMP
                )
            )
        except NetlinkError as error:
            code = abs(error.code)
            raise OSError(code, f"devlink health: {os.strerror(code)}") from error
        return [reporter(reply["attrs"]) for reply in replies]

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class Dump(Protocol):
    """What a source needs of `HealthDump`."""

    def read(self) -> list[Reporter]: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


class SharedDump:
    """One dump for the sources of all links, by whichever threads: read once within `TTL_S`.

    A thread that hangs in the kernel with it keeps nobody waiting: the others are refused.
    """

    TTL_S = 5.0
    WAIT_S = 1.0

    def __init__(
        self,
        opener: Callable[[], Dump] = HealthDump,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._opener, self._clock = opener, clock
        self._lock = threading.Lock()
        self._dump: Dump | None = None
        self._read: tuple[float, list[Reporter]] | None = None

    def read(self) -> list[Reporter]:
        """As `HealthDump.read`, at most `TTL_S` old; EBUSY while another thread hangs in it."""
        if not self._lock.acquire(timeout=self.WAIT_S):
            raise OSError(errno.EBUSY, "devlink does not answer")
        try:
            if self._read is None or self._clock() - self._read[0] >= self.TTL_S:
                try:
                    self._dump = self._dump or self._opener()
                    self._read = (self._clock(), self._dump.read())
                except (OSError, CounterError):
                    dump, self._dump, self._read = self._dump, None, None
                    if dump is not None:
                        dump.close()
                    raise
            return self._read[1]
        finally:
            self._lock.release()

    def close(self) -> None:
        """Nothing: the other sources still need it."""


def of_netdev(reporters: Iterable[Reporter], device: str, netdev: str) -> list[Reporter]:
    """Those of the PCI device behind a netdev: its own, and those of that netdev's port."""
    return [
        each
        for each in reporters
        if each.device == device and (each.port is None or not each.netdev or each.netdev == netdev)
    ]


class HealthSource:
    """devlink health of the device behind a netdev; see `telemetry.counters.types.Source`."""

    period_ns = 5 * 10**9

    def __init__(
        self,
        netdev: str,
        *,
        dump: Dump | None = None,
        sysfs: Path = _SYSFS,
        opener: Callable[[], Dump] = HealthDump,
    ) -> None:
        """Args: ``dump``: None to open one; ``sysfs``: ``/sys/class/net``; ``opener``: opens it."""
        self._opener = opener
        self._netdev = netdev
        self._device = sysfs / netdev / "device"
        self._dump: Dump | None = dump
        self._status = Status("devlink", netdev, on=False, reason="not read yet")
        self.reporters: tuple[Reporter, ...] = ()
        """As last read."""

    @property
    def status(self) -> Status:
        """Whether it is read, or why not."""
        return self._status

    def read(self, now_ns: int) -> Sample | None:
        """Read it now."""
        self.reporters = ()
        try:
            function = self._device.resolve(strict=True)
            bus = (function / "subsystem").resolve().name
            if bus == "virtio":
                function, bus = function.parent, "pci"
            inode = function.stat().st_ino
        except OSError:
            self._off("no device behind it")
            return None
        try:
            self._dump = self._dump or self._opener()
            found = self._dump.read()
        except CounterError as error:
            self._off(str(error))
            return None
        except OSError as error:
            self.close()
            absent = error.errno == errno.ENOENT
            self._off("the kernel has no devlink" if absent else str(error))
            return None
        self.reporters = tuple(of_netdev(found, f"{bus}/{function.name}", self._netdev))
        if not self.reporters:
            self._off("its driver has no health reporters")
            return None
        sick = {f"health/{x.name}": "error" for x in self.reporters if not x.healthy}
        # Its counts say no more of an error that is older than this process.
        missing = "; ".join(
            f"{x.name}: in error, not recovered" for x in self.reporters if not x.healthy
        )
        self._status = Status("devlink", self._netdev, on=True, reason=missing)
        return Sample(
            source="devlink",
            device=f"{bus}/{function.name}",
            incarnation=inode,
            at_ns=now_ns,
            values={
                "health_errors": sum(x.errors for x in self.reporters),
                "health_recoveries": sum(x.recoveries for x in self.reporters),
            },
            info=sick,
        )

    def close(self) -> None:
        """Close the socket; the next read opens it again."""
        if self._dump is not None:
            self._dump.close()
        self._dump = None

    def _off(self, why: str) -> None:
        self._status = Status("devlink", self._netdev, on=False, reason=why)
