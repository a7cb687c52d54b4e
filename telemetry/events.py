"""The vocabulary that all parts share: link states, event kinds, events.

Units: times are integer nanoseconds, ``wall_ns`` CLOCK_REALTIME for people and ``mono_ns``
CLOCK_MONOTONIC for arithmetic within one boot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

JsonScalar = str | int | float | bool | None


class LinkState(IntEnum):
    """State of one link (local NIC port). The numbers are those of the steer page."""

    UNKNOWN = 0
    """Never seen up. Not a failure."""
    UP = 1
    """Carries traffic at full weight."""
    SUSPECT = 2
    """Soft evidence is accumulating; still carries traffic."""
    DOWN = 3
    """Hard evidence, or probe evidence from two peers over two paths. Steered away."""
    HOLD = 4
    """Evidence cleared; steered away until the hold-down (or damping) lets it return."""
    PROBATION = 5
    """Returned to traffic, watched; one more fault damps it longer."""
    DEGRADED = 6
    """Works, but worse than it should (rate, errors, loss): lower weight."""
    ADMIN = 7
    """Taken down or drained by an operator. Not a failure."""


class ProbeState(StrEnum):
    """Whether probes watch a link. Anything but `HEARD`: the link is judged by its carrier only."""

    HEARD = "heard"
    """The link's present paths have heard a peer."""
    NEVER_HEARD = "never_heard"
    """The prober probes, the link has carrier, and for 30 s no packet came from any peer."""
    UNBOUND = "unbound"
    """The link's probe socket is not bound."""
    OFF = "off"
    """Nothing is probed: no address, no peer on the rail, or no prober."""


class EventKind(StrEnum):
    """What a timeline row says."""

    FLAP = "flap"
    """The carrier went down ``count`` times since the last row of this kind for the link."""
    CARRIER_UP = "carrier_up"
    LINK_STATE = "link_state"
    """Published transition ``from_state`` → ``to_state``."""
    PATH_STATE = "path_state"
    """A (local link, peer) path changed state; ``peer`` names it."""
    RDMA_STATE = "rdma_state"
    """RDMA on a link changed state, or on a path (``peer`` names it), by RDMA probes."""
    LOCATED = "located"
    """Where a fault is, by the pattern of what fails: ``data['part']`` and ``['element']``."""
    CONDITION = "condition"
    """``data['condition']``: congested (``['direction']``), slow, fine, or route: another base
    delay. Broken links have their `LINK_STATE` rows."""
    FINDING = "finding"
    """A rule about a link's counters (or a reading of its NIC) holds, or ended: ``data``."""
    RISK = "risk"
    """A link is named by the failure forecast, or no longer: ``data['risk']``."""
    STEER = "steer"
    """Weight taken from or given back to a link or path; ``data['weight']``."""
    WOULD_STEER = "would_steer"
    """The same, decided in observe mode and not done."""
    MODE = "mode"
    PROBING = "probing"
    """Probes watch a link, or no longer: ``data['state']`` is a `ProbeState`."""
    PROBER = "prober"
    """Prober appeared, vanished, restarted or stalled."""
    PLUGIN = "plugin"
    """A job's plugin failed over or rejoined (from its stats page)."""
    OPERATOR = "operator"
    """Somebody drained, opened a window, switched, promoted or reloaded; ``data['by']``."""
    PEER = "peer"
    """A peer host is silent on all rails, or heard again; ``data['silent']``. With a broker only.
    """
    ADDRESS = "address"
    """Two hosts name the same address, or no longer: ``data['host']``, ``['other']``."""
    BROKER = "broker"
    """The broker is connected or lost; ``data['connected']``."""
    FENCE = "fence"
    """A fence is applied here, is late, or is of this host's own fabric-run; ``data['job']``."""
    JOB = "job"
    """A job's fabric-run registered, left or ended; ``data['job']``."""
    GENERATION = "generation"
    """A job of this host runs a new generation, is held, has ended or failed; ``data['phase']``."""
    MIGRATION = "migration"
    """Ranks of a job of this host were taken over, or the job failed; ``data['outcome']``."""
    SLOW_RANK = "slow_rank"
    """A rank of a job of this host is slower than the others, or no longer; ``data['named']``."""
    DAEMON = "daemon"
    """Start, stop, reload, refused input."""


@dataclass(frozen=True, slots=True)
class Event:
    """One row of the timeline. ``seq`` is set by the store; (host, boot_id, seq) is unique."""

    kind: EventKind
    wall_ns: int
    mono_ns: int
    link: str = ""
    """Network interface name, or empty for a host event."""
    rail: int | None = None
    peer: str = ""
    from_state: LinkState | None = None
    to_state: LinkState | None = None
    reason: str = ""
    count: int = 1
    data: dict[str, JsonScalar] = field(default_factory=dict)
    host: str = ""
    boot_id: str = ""
    seq: int | None = None

    def to_dict(self) -> dict[str, object]:
        """The event as a JSON object: states by lower-case name, absent values left out."""
        out: dict[str, object] = {
            "kind": self.kind.value,
            "wall_ns": self.wall_ns,
            "mono_ns": self.mono_ns,
            "host": self.host,
            "boot_id": self.boot_id,
            "seq": self.seq,
            "link": self.link,
            "rail": self.rail,
            "peer": self.peer,
            "from": None if self.from_state is None else self.from_state.name.lower(),
            "to": None if self.to_state is None else self.to_state.name.lower(),
            "reason": self.reason,
            "count": self.count,
            "data": self.data or None,
        }
        return {key: value for key, value in out.items() if value is not None and value != ""}

    @classmethod
    def from_dict(cls, doc: dict[str, Any]) -> Event:
        """The inverse of `to_dict`.

        Raises:
            ValueError, KeyError, TypeError: not an event of this vocabulary.
        """
        return cls(
            kind=EventKind(doc["kind"]),
            wall_ns=int(doc["wall_ns"]),
            mono_ns=int(doc["mono_ns"]),
            link=str(doc.get("link", "")),
            rail=None if doc.get("rail") is None else int(doc["rail"]),
            peer=str(doc.get("peer", "")),
            from_state=LinkState[doc["from"].upper()] if doc.get("from") else None,
            to_state=LinkState[doc["to"].upper()] if doc.get("to") else None,
            reason=str(doc.get("reason", "")),
            count=int(doc.get("count", 1)),
            data=dict(doc.get("data") or {}),
            host=str(doc.get("host", "")),
            boot_id=str(doc.get("boot_id", "")),
            seq=None if doc.get("seq") is None else int(doc["seq"]),
        )
