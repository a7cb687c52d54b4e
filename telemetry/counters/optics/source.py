"""A netdev's module as a counter source: off where there is none, and says so."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from telemetry.counters.optics import cmis, sff8472, sff8636
from telemetry.counters.optics.eeprom import Eeprom, IoctlEeprom, NetlinkEeprom
from telemetry.counters.optics.memory import LOWER, Half, Memory, take
from telemetry.counters.optics.reading import Module, sample
from telemetry.counters.types import CounterError, Sample, Status

_MAPS: tuple[ModuleType, ...] = (sff8472, sff8636, cmis)
_ROUNDS = 8
"""Each round of reading tells which pages come next; three are enough for a sane module."""

_REASONS = {
    errno.ENODEV: "no such device",
    errno.EOPNOTSUPP: "the driver gives no module memory",
    errno.EIO: "no module is plugged, or it does not answer",
    errno.EPERM: "reading a module needs CAP_NET_ADMIN",
    errno.EINVAL: "the driver refuses to read the module",
}

Opener = Callable[[str], Eeprom]
OPENERS: tuple[Opener, ...] = (NetlinkEeprom, IoctlEeprom)


def memory_map(memory: Memory) -> ModuleType:
    """Which of the three maps a module has, by the identifier in byte 0.

    Raises:
        CounterError: none of them.
    """
    identifier = take(memory, LOWER)[0]
    for each in _MAPS:
        if identifier in each.IDENTIFIERS:
            return each
    raise CounterError(f"identifier {identifier:#04x} is of no known module")


def parse(memory: Memory) -> Module:
    """A reading from what was read of a module, whatever it is.

    Raises:
        CounterError: unknown, truncated or damaged.
    """
    return memory_map(memory).parse(memory)  # type: ignore[no-any-return]


def fetch(eeprom: Eeprom) -> dict[Half, bytes]:
    """All half pages that matter; those that cannot be read, other than the first, are left out.

    Raises:
        OSError, CounterError: the first could not be read, or is of no known module.
    """
    memory = {LOWER: eeprom.read(LOWER)}
    refused: set[Half] = set()
    which = memory_map(memory)
    for _ in range(_ROUNDS):
        missing = [half for half in which.wanted(memory) if half not in refused]
        if not missing:
            break
        for half in missing:
            try:
                memory[half] = eeprom.read(half)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    raise
                refused.add(half)
    return memory


class ModuleSource:
    """The module in a netdev's cage; see `telemetry.counters.types.Source`.

    Reading clears latched flags (SFF-8636, CMIS), so whoever else reads them sees less.
    """

    period_ns = 10 * 10**9
    """A read takes 10 ms and more of a bus of 400 kHz that the driver shares."""

    def __init__(
        self,
        netdev: str,
        *,
        openers: Sequence[Opener] = OPENERS,
        sysfs: Path = Path("/sys/class/net"),
    ) -> None:
        """Args: ``openers``: ways to read it, the best first; ``sysfs``: for the ifindex."""
        self._netdev = netdev
        self._openers = openers
        self._ifindex = sysfs / netdev / "ifindex"
        self._eeprom: Eeprom | None = None
        self._way = 0
        self._status = Status("module", netdev, on=False, reason="not read yet")
        self.module: Module | None = None
        """The last reading, with the maker's thresholds."""

    @property
    def status(self) -> Status:
        """Whether it is read, or why not."""
        return self._status

    def read(self, now_ns: int) -> Sample | None:
        """Read the module now; None when there is none or what it says is not credible."""
        self.module = None
        incarnation = self._incarnation()
        try:
            self.module = parse(self._fetch())
        except (OSError, CounterError) as error:
            self.close()
            self._status = Status("module", self._netdev, on=False, reason=reason(error))
            return None
        missing = "; ".join(f"{key}: {why}" for key, why in sorted(self.module.skipped.items()))
        self._status = Status("module", self._netdev, on=True, reason=missing)
        return sample(self.module, self._netdev, incarnation, now_ns)

    def close(self) -> None:
        """Close what is open; the next read opens it again."""
        if self._eeprom is not None:
            self._eeprom.close()
        self._eeprom = None
        self._way = 0

    def _fetch(self) -> Memory:
        """By the way that worked last, else by the first that works."""
        while True:
            last = self._way + 1 >= len(self._openers)
            try:
                if self._eeprom is None:
                    self._eeprom = self._openers[self._way](self._netdev)
                return fetch(self._eeprom)
            except OSError as error:
                # A driver may have one of the two only. Without a device or a right, neither works.
                if last or error.errno in (errno.ENODEV, errno.EPERM):
                    raise
                way = self._way + 1
                self.close()
                self._way = way

    def _incarnation(self) -> str:
        try:
            return self._ifindex.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""


def reason(error: OSError | CounterError) -> str:
    """Why a module cannot be read, for people."""
    if isinstance(error, CounterError):
        return str(error)
    return _REASONS.get(error.errno or 0) or os.strerror(error.errno or errno.EIO)
