"""What operators asked for and when it ends: drains, maintenance windows, detectors off. Pure.

The end is a time of CLOCK_REALTIME, so that it holds over reboots. Within one boot CLOCK_MONOTONIC
counts, also over restarts of the daemon, so that a clock that is set neither ends a window nor
prolongs it. After a reboot an override lasts at most as long as was asked for. One that ended more
than `IMPLAUSIBLE_NS` ago by then begins anew: the clock is likely wrong, and a link under repair is
not to carry.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

HOST = "host"
DRAINED = "drained by "
"""How the reason of a drained link begins; who drained it follows."""
"""The target of a maintenance window over all links; no interface of that name can have its own."""
SEC = 10**9
MAX_WINDOW_S = 7 * 86_400
MAX_OVERRIDE_S = 30 * 86_400
MAX_REASON = 200
IMPLAUSIBLE_NS = 30 * 86_400 * SEC
"""A host that was off for longer may keep a drain that ended; somebody then takes it back."""


class Kind(StrEnum):
    """What was asked for."""

    DRAIN = "drain"
    MAINTENANCE = "maintenance"
    DETECTOR_OFF = "detector_off"


@dataclass(frozen=True, slots=True)
class Override:
    """One thing asked for."""

    kind: Kind
    target: str
    """A netdev, `HOST`, or a detector."""
    begun_wall_ns: int
    ends_wall_ns: int | None
    """None: until it is taken back."""
    reason: str
    by: str
    boot_id: str = ""
    """Of the boot in which it was asked for; "": not known."""
    begun_mono_ns: int = 0
    """CLOCK_MONOTONIC of that boot."""

    @property
    def key(self) -> tuple[Kind, str]:
        """There is one override of a kind for a target."""
        return self.kind, self.target


def clean_reason(text: str) -> str:
    """One printable line of at most `MAX_REASON` characters."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(line.split())[:MAX_REASON]


class ActiveOverrides:
    """All overrides in force."""

    def __init__(self, boot: str = "") -> None:
        """Args: ``boot``: the id of this boot; "": not known, and no stored time is of it."""
        self._boot = boot
        self._overrides: dict[tuple[Kind, str], Override] = {}
        self._ends: dict[tuple[Kind, str], int] = {}
        """CLOCK_MONOTONIC; only of those that end."""

    def put(
        self,
        kind: Kind,
        target: str,
        *,
        seconds: float | None,
        reason: str,
        by: str,
        wall_ns: int,
        now: int,
    ) -> Override:
        """Ask for something; replaces an earlier override of that kind and target.

        Args:
            kind: what.
            target: for what.
            seconds: how long; None: until taken back (not for a maintenance window).
            reason: for people.
            by: who asked.
            wall_ns: CLOCK_REALTIME.
            now: CLOCK_MONOTONIC ns.

        Raises:
            ValueError: the duration is not allowed; the text says what is.
        """
        limit = MAX_WINDOW_S if kind is Kind.MAINTENANCE else MAX_OVERRIDE_S
        if seconds is None and kind is Kind.MAINTENANCE:
            raise ValueError("a maintenance window needs an end; allowed: up to 7 d")
        if seconds is not None and not 1 <= seconds <= limit:
            raise ValueError(f"for {seconds:g} s; allowed: from 1 s to {limit // 86_400} d")
        length = None if seconds is None else round(seconds * SEC)
        ends = None if length is None else wall_ns + length
        override = Override(kind, target, wall_ns, ends, clean_reason(reason), by, self._boot, now)
        self._overrides[override.key] = override
        self._ends.pop(override.key, None)
        if length is not None:
            self._ends[override.key] = now + length
        return override

    def take_back(self, kind: Kind, target: str) -> Override | None:
        """End an override before its time; None: there is none."""
        self._ends.pop((kind, target), None)
        return self._overrides.pop((kind, target), None)

    def expire(self, now: int) -> list[Override]:
        """Drop what has ended; returns it."""
        over = [key for key, end in self._ends.items() if end <= now]
        for key in over:
            del self._ends[key]
        return [self._overrides.pop(key) for key in over]

    def due_at(self) -> int | None:
        """When (CLOCK_MONOTONIC ns) the next one ends; None: none does."""
        return min(self._ends.values(), default=None)

    def get(self, kind: Kind, target: str) -> Override | None:
        """The override of that kind for a target."""
        return self._overrides.get((kind, target))

    def of(self, kind: Kind) -> dict[str, Override]:
        """Target → override, of one kind."""
        return {
            override.target: override
            for override in self._overrides.values()
            if override.kind is kind
        }

    def left_s(self, override: Override, now: int) -> float | None:
        """Seconds until it ends; None: it does not."""
        end = self._ends.get(override.key)
        return None if end is None else max(0.0, (end - now) / SEC)

    def save(self) -> list[dict[str, Any]]:
        """A JSON document for `restore`."""
        return [asdict(self._overrides[key]) for key in sorted(self._overrides)]

    def restore(self, document: object, *, wall_ns: int, now: int) -> list[str]:
        """Take over what `save` gave; returns what was not usable, or not believed.

        What ended meanwhile is taken over too, so that `expire` reports it.
        """
        if not isinstance(document, list):
            return ["not a list of overrides"]
        refused = []
        for item in document:
            try:
                override = _override(item)
            except (KeyError, TypeError, ValueError) as error:
                refused.append(f"{str(item)[:80]}: {error}")
                continue
            self._overrides[override.key] = override
            if override.ends_wall_ns is None:
                continue
            asked, left = override.ends_wall_ns - override.begun_wall_ns, 0
            if self._boot and override.boot_id == self._boot:
                left = override.begun_mono_ns + asked - now
            elif (late := wall_ns - override.ends_wall_ns) <= IMPLAUSIBLE_NS:
                left = -late
            else:
                left = asked
                refused.append(
                    f"{override.kind} {override.target}: ended {late // (86_400 * SEC)} d ago by "
                    f"the wall clock; it holds for {asked // SEC} s more: is the clock right?"
                )
            self._ends[override.key] = now + min(max(0, left), asked)
        return refused


def _override(item: Any) -> Override:  # noqa: ANN401 - untrusted JSON
    begun, ends = item["begun_wall_ns"], item["ends_wall_ns"]
    kind, target = Kind(item["kind"]), item["target"]
    if type(begun) is not int or not (ends is None or type(ends) is int):
        raise ValueError("times must be integers")
    if not isinstance(target, str) or not 0 < len(target) <= 64:
        raise ValueError("no target")
    if (ends is None and kind is Kind.MAINTENANCE) or (ends is not None and ends < begun):
        raise ValueError("no end")
    boot, mono = item.get("boot_id", ""), item.get("begun_mono_ns", 0)  # Earlier files have none.
    if not isinstance(boot, str) or type(mono) is not int:
        raise ValueError("no boot")
    return Override(
        kind, target, begun, ends, clean_reason(str(item["reason"])), str(item["by"])[:64],
        boot[:64], mono,
    )  # fmt: skip
