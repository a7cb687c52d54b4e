"""The operator's desk: takes wishes, keeps them, has the host heed them, ends them in time.

Whatever it refuses it refuses with a text that says what to do instead; a wish is in force only
once it is on the disk, so what an operator was told holds over a crash.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import structlog

from fabricd.config.loader import Config
from fabricd.engine import Engine
from fabricd.links.machine import CARRYING
from fabricd.operate.detectors import DETECTORS, unknown
from fabricd.operate.orders import Orders
from fabricd.operate.store import WishStore
from fabricd.operate.wishes import HOST, Kind, Wish, Wishes
from fabricd.state.model import Link
from fabricd.steer.modes import Mode, Modes
from fabricd.steer.policy import weight_of
from fabricd.timeline.rows import event
from telemetry.events import Event, EventKind


class SteeredHost(Protocol):
    """What an override acts on: `fabricd.runtime.host.Host` has it."""

    config: Config
    engine: Engine
    modes: Modes

    def mode_of(self, netdev: str) -> Mode:
        """The mode in effect on a link."""
        ...

    def emit(self, events: Sequence[Event]) -> None:
        """Record events."""
        ...

    def step(self) -> None:
        """Evaluate and publish."""
        ...


class WishError(Exception):
    """The wish is not granted; the text is for the operator."""


class Desk:
    """One host's wishes in force.

    Attributes:
        wishes: all of them.
        errors: times that the file could not be written when a wish ended by itself.
    """

    def __init__(self, store: WishStore) -> None:
        self.wishes = Wishes()
        self.errors = 0
        self._store = store
        self._dirty = False
        self._log = structlog.get_logger()

    def open(self, host: SteeredHost) -> list[str]:
        """Take over an earlier daemon's wishes; returns what was not usable."""
        refused = self._store.load(self.wishes)
        self.heed(host)
        return refused

    # -- wishes -------------------------------------------------------------------------------

    def drain(
        self, host: SteeredHost, netdev: str, *, seconds: float | None, reason: str, by: str
    ) -> Wish:
        """Take a link out for planned work.

        Raises:
            WishError: no such link, the host observes there, or it is the last that carries.
        """
        link = _link(host, netdev)
        if host.mode_of(netdev) is Mode.OBSERVE:
            why = "the stop file is present" if host.modes.stopped else "it observes"
            raise WishError(
                f"{netdev} is not steered ({why}), so a drain would move no traffic; "
                "allowed: after fabricctl promote steer"
            )
        if self.wishes.get(Kind.DRAIN, netdev) is None:
            left = [x.netdev for x in host.engine.links if x is not link and self._carries(x)]
            if not left:
                raise WishError(f"{netdev} is the last link that carries; allowed: with another up")
            if peers := self._only_reached_by(host, netdev, left):
                raise WishError(
                    f"{netdev} is the last way to {', '.join(peers[:3])}; "
                    "allowed: with another path to every peer"
                )
        return self._put(host, Kind.DRAIN, netdev, seconds, reason, by)

    def undrain(self, host: SteeredHost, netdev: str, by: str) -> Wish:
        """Give a drained link back to traffic.

        Raises:
            WishError: it is not drained.
        """
        if netdev not in self.wishes.of(Kind.DRAIN):
            _link(host, netdev)
        return self._take_back(host, Kind.DRAIN, netdev, by, "not drained")

    def open_window(
        self, host: SteeredHost, target: str, *, seconds: float, reason: str, by: str
    ) -> Wish:
        """Open (or change) a maintenance window for a link or `HOST`.

        Raises:
            WishError: no such link, or no such duration.
        """
        if target != HOST:
            _link(host, target)
        return self._put(host, Kind.MAINTENANCE, target, seconds, reason, by)

    def close_window(self, host: SteeredHost, target: str, by: str) -> Wish:
        """End a window before its time.

        Raises:
            WishError: there is none.
        """
        return self._take_back(host, Kind.MAINTENANCE, target, by, "in no maintenance window")

    def detector_off(
        self, host: SteeredHost, name: str, *, seconds: float | None, reason: str, by: str
    ) -> Wish:
        """Switch a detector off.

        Raises:
            WishError: no such detector.
        """
        if name not in DETECTORS:
            raise WishError(unknown(name))
        return self._put(host, Kind.DETECTOR_OFF, name, seconds, reason, by)

    def detector_on(self, host: SteeredHost, name: str, by: str) -> Wish:
        """Switch a detector on again.

        Raises:
            WishError: it is on, or off by the configuration.
        """
        if name not in DETECTORS:
            raise WishError(unknown(name))
        if name in host.config.detectors.off:
            raise WishError(f"{name} is off by the configuration ([detectors] off): change that")
        return self._take_back(host, Kind.DETECTOR_OFF, name, by, "on already")

    # -- in force -----------------------------------------------------------------------------

    def tick(self, host: SteeredHost, now: int) -> None:
        """End what is over."""
        over = self.wishes.expire(now)
        for wish in over:
            host.emit([_told(host, wish, f"{_name(wish)} ended: its time was over", "fabricd")])
        self._dirty = self._dirty or bool(over)
        if self._dirty:
            try:
                self._store.save(self.wishes)
                self._dirty = False
            except OSError as error:
                # The file's end times hold anyway: nothing is prolonged by a full disk.
                self.errors += 1
                self._log.error("wishes not stored", error=str(error))
        if over:
            self.heed(host)
            self._settle(host)

    def heed(self, host: SteeredHost) -> None:
        """Hand the engine what is in force."""
        windows = self.wishes.of(Kind.MAINTENANCE)
        netdevs = frozenset(link.netdev for link in host.engine.links)
        host.engine.orders = Orders(
            drained={
                netdev: f"drained by {wish.by}" + (f": {wish.reason}" if wish.reason else "")
                for netdev, wish in self.wishes.of(Kind.DRAIN).items()
            },
            planned=netdevs if HOST in windows else frozenset(windows),
            off=frozenset(self.wishes.of(Kind.DETECTOR_OFF)) | frozenset(host.config.detectors.off),
        )

    def document(self, host: SteeredHost) -> dict[str, Any]:
        """All that is in force, for ``status``."""
        now = time.monotonic_ns()
        out: dict[str, Any] = {
            kind.value: [self.describe(wish, now) for wish in self.wishes.of(kind).values()]
            for kind in Kind
        }
        out["detectors"] = {name: name not in host.engine.orders.off for name in DETECTORS}
        return out

    def describe(self, wish: Wish, now: int) -> dict[str, Any]:
        """One wish as JSON."""
        left = self.wishes.left_s(wish, now)
        return {
            "target": wish.target,
            "reason": wish.reason,
            "by": wish.by,
            "since_wall_s": wish.begun_wall_ns / 1e9,
            "left_s": None if left is None else round(left, 1),
        }

    # -- inside -------------------------------------------------------------------------------

    def _carries(self, link: Link) -> bool:
        """Whether a link carries, by itself and not as the least bad."""
        out = link.netdev in self.wishes.of(Kind.DRAIN) or link.carrier is False
        return not out and weight_of(link.health.state, link.carrier) > 0

    @staticmethod
    def _only_reached_by(host: SteeredHost, netdev: str, left: list[str]) -> list[str]:
        """Peers that are probed over the links ``left`` too, and reached over ``netdev`` alone."""
        here: set[str] = set()
        there: dict[str, bool] = {}
        for path in host.engine.paths:
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
    ) -> Wish:
        before = self.wishes.save()
        now = time.monotonic_ns()
        try:
            wish = self.wishes.put(
                kind, target, seconds=seconds, reason=reason, by=by,
                wall_ns=time.time_ns(), now=now,
            )  # fmt: skip
        except ValueError as error:
            raise WishError(str(error)) from error
        self._store_or_undo(before)
        length = "until taken back" if seconds is None else f"for {seconds:g} s"
        host.emit([_told(host, wish, f"{_name(wish)} {length}", by)])
        self.heed(host)
        self._settle(host)
        return wish

    def _take_back(
        self, host: SteeredHost, kind: Kind, target: str, by: str, otherwise: str
    ) -> Wish:
        before = self.wishes.save()
        wish = self.wishes.take_back(kind, target)
        if wish is None:
            raise WishError(f"{target[:32]} is {otherwise}")
        self._store_or_undo(before)
        if kind is Kind.DRAIN:
            for link in host.engine.links:
                if link.netdev == target:
                    # Somebody has worked on it and vouches for it.
                    link.health.damping.forgive()
        host.emit([_told(host, wish, f"{_name(wish)} taken back", by)])
        self.heed(host)
        self._settle(host)
        return wish

    def _store_or_undo(self, before: list[dict[str, Any]]) -> None:
        try:
            self._store.save(self.wishes)
        except OSError as error:
            self.wishes = Wishes()
            self.wishes.restore(before, wall_ns=time.time_ns(), now=time.monotonic_ns())
            raise WishError(
                f"not stored, so not done: {self._store.path}: {error.strerror}"
            ) from error

    @staticmethod
    def _settle(host: SteeredHost) -> None:
        """Have the page say it now.

        Twice: what comes back from a drain is judged before traffic finds it.
        """
        host.step()
        host.step()


def windows_of(desk: Desk, netdev: str) -> list[Wish]:
    """The maintenance windows that a link is in: its own, its host's."""
    windows = desk.wishes.of(Kind.MAINTENANCE)
    return [windows[target] for target in (netdev, HOST) if target in windows]


def _link(host: SteeredHost, netdev: str) -> Link:
    for link in host.engine.links:
        if link.netdev == netdev:
            return link
    known = ", ".join(link.netdev for link in host.engine.links)
    raise WishError(f'no link "{netdev[:32]}"; allowed: {known}')


def _name(wish: Wish) -> str:
    return {
        Kind.DRAIN: "drain",
        Kind.MAINTENANCE: f"maintenance of {wish.target}",
        Kind.DETECTOR_OFF: f"detector {wish.target} off",
    }[wish.kind]


def _told(host: SteeredHost, wish: Wish, what: str, by: str) -> Event:
    rails = {link.netdev: link.rail for link in host.engine.links}
    on_link = wish.target if wish.kind is not Kind.DETECTOR_OFF and wish.target in rails else ""
    return event(
        EventKind.OPERATOR,
        link=on_link,
        rail=rails.get(on_link),
        reason=what + (f": {wish.reason}" if wish.reason else ""),
        data={"by": by},
    )
