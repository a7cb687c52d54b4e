"""Looks at the state of verbs ports again and again; a driver that hangs holds up nobody else."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from fabricd.links.ibports import IbPorts, Port
from fabricd.process.blocking_call import BlockingCaller
from telemetry.events import EventKind

LIMIT_S = 3.0
DROP_S = 60.0
"""A state so old is no evidence any more, as with the NICs' counters."""
AGAIN_S = 10.0
"""Ports of links that have none are looked for so often: a GID table has up to 256 files."""


class PortListener(Protocol):
    """What is found is handed over to it: `fabricd.runtime.nic_input.NicInput` takes it."""

    def ports_found(self, ports: Mapping[str, Sequence[Port]]) -> None: ...  # noqa: D102
    def ports_read(self, active: dict[str, bool | None]) -> None: ...  # noqa: D102


class PortWatch:
    """Of one host. `note` says when ports do not answer, and so does the timeline, once."""

    def __init__(
        self,
        ports: IbPorts,
        listener: PortListener,
        record: Callable[[EventKind, str], None],
        *,
        make: Callable[[Sequence[str], Mapping[str, str]], IbPorts] = IbPorts,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._listener, self._record = listener, record
        self._ports = ports
        self._note = ports.note
        self._make = make
        self._blocking = BlockingCaller("verbs", limit_s)
        self._hangs_ns: int | None = None
        """Since when."""
        self._looked_ns: int | None = None
        """When ports were looked for; None: before the first look."""

    @property
    def note(self) -> str:
        """Which ports there are, or why they do not answer; for ``fabricctl status``."""
        return self._note

    async def look(
        self, netdevs: Sequence[str], named: Mapping[str, str], *, now: int | None = None
    ) -> None:
        """Look once; ``now``: CLOCK_MONOTONIC, ns; None: as the clock says."""
        began = time.monotonic_ns() if now is None else now
        if self._blocking.busy:
            self._hanging(began)
            return
        if self._looked_ns is None:
            self._looked_ns = began
        again = self._ports.incomplete and began - self._looked_ns >= AGAIN_S * 1e9
        # Another configuration, a device plugged in; or a link has no port yet.
        if again or self._ports.changed(netdevs, named):
            self._looked_ns = began
            made = partial(self._make, list(netdevs), dict(named))
            if not await self._blocking.call(made, self._made):
                self._hanging(began)
                return
        if self._ports.netdevs:
            ports = self._ports
            if not await self._blocking.call(ports.read, partial(self._read, ports)):
                self._hanging(began)

    def _made(self, ports: IbPorts) -> None:
        before, self._ports = self._ports, ports
        self._answered()
        if ports.ports == before.ports:
            return  # states that were read stay true
        self._listener.ports_found(ports.ports)
        self._listener.ports_read({})

    def _read(self, ports: IbPorts, active: dict[str, bool | None]) -> None:
        self._answered()
        if ports is self._ports:
            self._listener.ports_read(active)

    def _answered(self) -> None:
        self._note = self._ports.note
        if self._hangs_ns is not None:
            self._hangs_ns = None
            self._record(EventKind.DAEMON, "verbs ports answer again")

    def _hanging(self, now: int) -> None:
        if self._hangs_ns is None:
            self._hangs_ns = now
            self._record(EventKind.DAEMON, "verbs ports do not answer: their state is old")
        seconds = (now - self._hangs_ns) / 1e9
        self._note = f"no answer for {seconds:.0f} s: {self._ports.note}"
        if seconds > DROP_S:
            self._listener.ports_read({})
