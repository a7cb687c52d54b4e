"""Operator overrides: accepts them, stores them, says what is in force, ends them in time.

Each call returns what follows from it; `fabricd.runtime.operator` applies that.

A refusal says what to do instead. An override is in force only once it is on the disk, so what an
operator was told holds over a crash.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from fabricd.links.machine import CARRYING
from fabricd.operate.detectors import DETECTORS, unknown
from fabricd.operate.effective import EffectiveOverrides
from fabricd.operate.overrides import DRAINED, HOST, ActiveOverrides, Kind, Override
from fabricd.operate.store import OverrideStore
from fabricd.state.model import Link, Path
from fabricd.steer.modes import Mode
from fabricd.steer.policy import weight_of
from fabricd.timeline.rows import event
from telemetry.events import Event, EventKind
from telemetry.timeline import boot_id


@dataclass(frozen=True, slots=True)
class SteeredHost:
    """The state of a host that decides whether an override is granted. Read, never written.

    Attributes:
        links: of the host, in the state that they are in.
        paths: likewise.
        modes: netdev → the mode in effect there; a link that is missing observes.
        stopped: whether the stop file is present.
        stop_file: its path.
        detectors_off: that the configuration switches off.
    """

    links: Sequence[Link]
    paths: Sequence[Path]
    modes: Mapping[str, Mode]
    stopped: bool
    detectors_off: frozenset[str]
    stop_file: str = "/etc/fabricd/STOP"


@dataclass(frozen=True, slots=True)
class OverrideChange:
    """What an operator did, stored already.

    Attributes:
        override: given, or taken back.
        event: for the timeline.
        forgiven: the link whose damping penalty is dropped; "": no link.
    """

    override: Override
    event: Event
    forgiven: str = ""


class OverrideError(Exception):
    """The override is not granted; the text is for the operator."""


class OverrideManager:
    """One host's overrides in force.

    Attributes:
        active: those in force.
        errors: times that the file could not be written when an override ended by itself.
    """

    def __init__(self, store: OverrideStore) -> None:
        self._boot = boot_id()
        self.active = ActiveOverrides(self._boot)
        self.errors = 0
        self._store = store
        self._dirty = False
        self._log = structlog.get_logger()

    def open(self) -> list[str]:
        """Take over an earlier daemon's overrides; returns what was not usable."""
        return self._store.load(self.active)

    # -- overrides -------------------------------------------------------------------------------

    def drain(
        self, host: SteeredHost, netdev: str, *, seconds: float | None, reason: str, by: str
    ) -> OverrideChange:
        """Take a link out for planned work.

        Raises:
            OverrideError: no such link, the host observes there, or it is the last that carries.
        """
        link = _link(host, netdev)
        if host.modes.get(netdev, Mode.OBSERVE) is Mode.OBSERVE:
            why, allowed = "it observes", "after fabricctl promote steer"
            if host.stopped:
                why = f"the stop file {host.stop_file} is present"
                allowed = f"once that file is removed: rm {host.stop_file}"
            raise OverrideError(
                f"{netdev} is not steered ({why}), so a drain would move no traffic; "
                f"allowed: {allowed}"
            )
        if self.active.get(Kind.DRAIN, netdev) is None:
            left = [x.netdev for x in host.links if x is not link and self._carries(x)]
            if not left:
                raise OverrideError(
                    f"{netdev} is the last link that carries; allowed: with another up"
                )
            if peers := self._only_reached_by(host, netdev, left):
                raise OverrideError(
                    f"{netdev} is the last way to {', '.join(peers[:3])}; "
                    "allowed: with another path to every peer"
                )
        return self._put(host, Kind.DRAIN, netdev, seconds, reason, by)

    def undrain(self, host: SteeredHost, netdev: str, by: str) -> OverrideChange:
        """Give a drained link back to traffic.

        Raises:
            OverrideError: it is not drained.
        """
        if netdev not in self.active.of(Kind.DRAIN):
            _link(host, netdev)
        return self._take_back(host, Kind.DRAIN, netdev, by, "not drained")

    def open_window(
        self, host: SteeredHost, target: str, *, seconds: float, reason: str, by: str
    ) -> OverrideChange:
        """Open (or change) a maintenance window for a link or `HOST`.

        Raises:
            OverrideError: no such link, or no such duration.
        """
        if target != HOST:
            _link(host, target)
        return self._put(host, Kind.MAINTENANCE, target, seconds, reason, by)

    def close_window(self, host: SteeredHost, target: str, by: str) -> OverrideChange:
        """End a window before its time.

        Raises:
            OverrideError: there is none.
        """
        return self._take_back(host, Kind.MAINTENANCE, target, by, "in no maintenance window")

    def detector_off(
        self, host: SteeredHost, name: str, *, seconds: float | None, reason: str, by: str
    ) -> OverrideChange:
        """Switch a detector off.

        Raises:
            OverrideError: no such detector.
        """
        if name not in DETECTORS:
            raise OverrideError(unknown(name))
        return self._put(host, Kind.DETECTOR_OFF, name, seconds, reason, by)

    def detector_on(self, host: SteeredHost, name: str, by: str) -> OverrideChange:
        """Switch a detector on again.

        Raises:
            OverrideError: it is on, or off by the configuration.
        """
        if name not in DETECTORS:
            raise OverrideError(unknown(name))
        if name in host.detectors_off:
            raise OverrideError(
                f"{name} is off by the configuration ([detectors] off): change that"
            )
        return self._take_back(host, Kind.DETECTOR_OFF, name, by, "on already")

    # -- in force -----------------------------------------------------------------------------

    def expire(self, host: SteeredHost, now: int) -> list[Event]:
        """End what is over; returns one event for each. ``now``: CLOCK_MONOTONIC ns."""
        over = self.active.expire(now)
        self._dirty = self._dirty or bool(over)
        if self._dirty:
            try:
                self._store.save(self.active)
                self._dirty = False
            except OSError as error:
                # The file's end times hold anyway: nothing is prolonged by a full disk.
                self.errors += 1
                self._log.error("overrides not stored", error=str(error))
        return [
            _told(host, override, f"{_name(override)} ended: its time was over", "fabricd")
            for override in over
        ]

    def effective(self, host: SteeredHost) -> EffectiveOverrides:
        """What is in force now, for the engine."""
        windows = self.active.of(Kind.MAINTENANCE)
        netdevs = frozenset(link.netdev for link in host.links)
        return EffectiveOverrides(
            drained={
                netdev: f"{DRAINED}{override.by}"
                + (f": {override.reason}" if override.reason else "")
                for netdev, override in self.active.of(Kind.DRAIN).items()
            },
            planned=netdevs if HOST in windows else frozenset(windows),
            off=frozenset(self.active.of(Kind.DETECTOR_OFF)) | host.detectors_off,
        )

    def document(self, off: frozenset[str], now: int) -> dict[str, Any]:
        """All that is in force, for ``status``. ``off``: detectors, whoever switched them off."""
        out: dict[str, Any] = {
            kind.value: [self.describe(override, now) for override in self.active.of(kind).values()]
            for kind in Kind
        }
        out["detectors"] = {name: name not in off for name in DETECTORS}
        return out

    def describe(self, override: Override, now: int) -> dict[str, Any]:
        """One override as JSON."""
        left = self.active.left_s(override, now)
        return {
            "target": override.target,
            "reason": override.reason,
            "by": override.by,
            "since_wall_s": override.begun_wall_ns / 1e9,
            "left_s": None if left is None else round(left, 1),
        }

    # -- inside -------------------------------------------------------------------------------

    def _carries(self, link: Link) -> bool:
        """Whether a link carries, by itself and not as the least bad."""
        out = link.netdev in self.active.of(Kind.DRAIN) or link.carrier is False
        return not out and weight_of(link.health.state, link.carrier) > 0

    @staticmethod
    def _only_reached_by(host: SteeredHost, netdev: str, left: list[str]) -> list[str]:
        """Peers that are probed over the links ``left`` too, and reached over ``netdev`` alone."""
        here: set[str] = set()
        there: dict[str, bool] = {}
        for path in host.paths:
            carries = path.health.state in CARRYING
            if path.netdev == netdev and carries:
                here.add(path.spec.peer)
            elif path.netdev in left:
                there[path.spec.peer] = there.get(path.spec.peer, False) or carries
        return sorted(peer for peer in here if there.get(peer) is False)

    def _put(
        self,
        host: SteeredHost,
        kind: Kind,
        target: str,
        seconds: float | None,
        reason: str,
        by: str,
    ) -> OverrideChange:
        before = self.active.save()
        now = time.monotonic_ns()
        try:
            override = self.active.put(
                kind, target, seconds=seconds, reason=reason, by=by,
                wall_ns=time.time_ns(), now=now,
            )  # fmt: skip
        except ValueError as error:
            raise OverrideError(str(error)) from error
        self._store_or_undo(before)
        length = "until taken back" if seconds is None else f"for {seconds:g} s"
        return OverrideChange(override, _told(host, override, f"{_name(override)} {length}", by))

    def _take_back(
        self, host: SteeredHost, kind: Kind, target: str, by: str, otherwise: str
    ) -> OverrideChange:
        before = self.active.save()
        override = self.active.take_back(kind, target)
        if override is None:
            raise OverrideError(f"{target[:32]} is {otherwise}")
        self._store_or_undo(before)
        said = _told(host, override, f"{_name(override)} taken back", by)
        return OverrideChange(override, said, forgiven=target if kind is Kind.DRAIN else "")

    def _store_or_undo(self, before: list[dict[str, Any]]) -> None:
        try:
            self._store.save(self.active)
        except OSError as error:
            self.active = ActiveOverrides(self._boot)
            self.active.restore(before, wall_ns=time.time_ns(), now=time.monotonic_ns())
            raise OverrideError(
                f"not stored, so not done: {self._store.path}: {error.strerror}"
            ) from error


def windows_of(overrides: OverrideManager, netdev: str) -> list[Override]:
    """The maintenance windows that a link is in: its own, its host's."""
    windows = overrides.active.of(Kind.MAINTENANCE)
    return [windows[target] for target in (netdev, HOST) if target in windows]


def _link(host: SteeredHost, netdev: str) -> Link:
    for link in host.links:
        if link.netdev == netdev:
            return link
    known = ", ".join(link.netdev for link in host.links)
    raise OverrideError(f'no link "{netdev[:32]}"; allowed: {known}')


def _name(override: Override) -> str:
    return {
        Kind.DRAIN: "drain",
        Kind.MAINTENANCE: f"maintenance of {override.target}",
        Kind.DETECTOR_OFF: f"detector {override.target} off",
    }[override.kind]


def _told(host: SteeredHost, override: Override, what: str, by: str) -> Event:
    rails = {link.netdev: link.rail for link in host.links}
    on_link = (
        override.target
        if override.kind is not Kind.DETECTOR_OFF and override.target in rails
        else ""
    )
    return event(
        EventKind.OPERATOR,
        link=on_link,
        rail=rails.get(on_link),
        reason=what + (f": {override.reason}" if override.reason else ""),
        data={"by": by},
    )
