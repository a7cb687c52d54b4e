"""The fences that hold on this host, and who has still to apply each. Pure.

A fence is a promise: once in force it stays, also when no fabric-compute orders it any more, until
`MOST_UNORDERED` younger ones do. Its id is acknowledged only when every applier and the job's own
fabric-run here, if there is one, have applied it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from telemetry.messages.documents import Fence, parse
from telemetry.messages.envelope import BadMessageError

MOST_UNORDERED = 1024
MOST_FENCES = 4096
JOB = "fabric-run"
"""The applier that is the job's own fabric-run on this host."""


class FenceError(Exception):
    """An applier could not apply a fence; it is tried again. The text says why."""


class FenceApplier(Protocol):
    """One way in which this host keeps a fenced process out.

    ``name`` is for people. ``apply`` is given all fences that hold and, among them, those that are
    new to it; when it returns, all of them hold. It is called again with each new fence, and after
    ``FenceError``.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    async def apply(self, fences: Collection[Fence], new: Collection[Fence]) -> None: ...  # noqa: D102


@dataclass
class _Held:
    fence: Fence
    since_ns: int
    pending: set[str] = field(default_factory=set)
    ordered: bool = True
    told_late: bool = False


class FenceRegistry:
    """Fences by id, oldest first."""

    def __init__(self, appliers: Iterable[str], deadline_ns: int) -> None:
        """Args: ``appliers``: their names; ``deadline_ns``: after which a fence is late."""
        self._appliers = list(appliers)
        self._deadline_ns = deadline_ns
        self._held: dict[str, _Held] = {}

    def check(self, fences: Collection[Fence]) -> None:
        """Raises ``BadMessageError``: an id is that of another fence, or there are too many."""
        new = sum(fence.id not in self._held for fence in fences)
        if new and new + len(self._held) > MOST_FENCES:
            raise BadMessageError(f"{new} new fences; {len(self._held)} of {MOST_FENCES} hold")
        for fence in fences:
            held = self._held.get(fence.id)
            if held is not None and _content(held.fence) != _content(fence):
                known = held.fence
                raise BadMessageError(
                    f"fence {fence.id:.80} is of {known.job}, {known.host}, {known.incarnation:.80}"
                )

    def order(
        self, fences: Mapping[str, Fence], jobs_here: Mapping[str, int], now: int
    ) -> list[Fence]:
        """Take all fences that are ordered now; returns the new ones.

        Args:
            fences: by id.
            jobs_here: job with a fabric-run on this host → its user. That run has to apply the
                fences of its job.
            now: CLOCK_MONOTONIC ns.
        """
        new = []
        for held in self._held.values():
            held.ordered = held.fence.id in fences
        for fence in fences.values():
            held_already = self._held.get(fence.id)
            if held_already is not None and held_already.fence.uid is None:
                held_already.fence = fence  # The user is known by now, perhaps.
            if held_already is not None or len(self._held) >= MOST_FENCES:
                continue
            own = fence.job in jobs_here and fence.is_of(jobs_here[fence.job])
            pending = {*self._appliers} | ({JOB} if own else set())
            self._held[fence.id] = _Held(fence, now, pending)
            new.append(fence)
        unordered = [key for key, held in self._held.items() if not held.ordered]
        for key in unordered[: max(0, len(unordered) - MOST_UNORDERED)]:
            del self._held[key]
        return new

    def all(self) -> list[Fence]:
        """Every fence that is in force, applied or being applied."""
        return [held.fence for held in self._held.values()]

    def of_job(self, job: str, uid: int | None = None) -> list[Fence]:
        """Those of one job. ``uid``: of that user's job of the name alone; None: of all."""
        return [fence for fence in self.all() if fence.job == job and fence.is_of(uid)]

    def fences_run(self, host: str, job: str, incarnation: str) -> Fence | None:
        """The fence of that very life of a fabric-run; None: it may go on."""
        for fence in self.of_job(job):
            if (fence.host, fence.incarnation) == (host, incarnation):
                return fence
        return None

    def pending(self, applier: str) -> list[Fence]:
        """What an applier has still to apply."""
        return [held.fence for held in self._held.values() if applier in held.pending]

    def applied(self, fence_id: str, applier: str) -> bool:
        """An applier has applied a fence; True: with that the fence is acknowledged."""
        held = self._held.get(fence_id)
        if held is None or applier not in held.pending:
            return False
        held.pending.discard(applier)
        return not held.pending

    def job_ended(self, job: str, uid: int | None = None) -> list[Fence]:
        """No process of a user's job is left here; returns the fences acknowledged by that."""
        return [fence for fence in self.of_job(job, uid) if self.applied(fence.id, JOB)]

    def acknowledged(self) -> list[str]:
        """Ids of the fences that hold, the newest `MOST_FENCES`."""
        return [key for key, held in self._held.items() if not held.pending][-MOST_FENCES:]

    def late(self, now: int) -> list[tuple[Fence, list[str]]]:
        """Fences whose deadline has passed, each once, with who has not applied them."""
        out = []
        for held in self._held.values():
            if held.pending and not held.told_late and now - held.since_ns >= self._deadline_ns:
                held.told_late = True
                out.append((held.fence, sorted(held.pending)))
        return out

    def next_deadline_ns(self) -> int | None:
        """When `late` has to be asked next; None: nothing is waited for."""
        return min(
            (held.since_ns + self._deadline_ns for held in self._held.values()
             if held.pending and not held.told_late),
            default=None,
        )  # fmt: skip

    def save(self) -> dict[str, Any]:
        """JSON of all fences, as `restore` takes it."""
        return to_stored(self.all())

    def restore(self, stored: object, jobs_here: Mapping[str, int], now: int) -> None:
        """Take over what `save` gave: all appliers have to apply it anew.

        Raises:
            BadMessageError: not of that form; nothing has changed.
        """
        fences = from_stored(stored)
        self.order({fence.id: fence for fence in fences}, jobs_here, now)


def to_stored(fences: Iterable[Fence]) -> dict[str, Any]:
    """JSON of fences. The version before reads ``fences`` alone, and none that says its user."""
    known = list(fences)
    return {
        "fences": [fence.model_copy(update={"uid": None}).model_dump() for fence in known],
        "users": {fence.id: fence.uid for fence in known if fence.uid is not None},
    }


def from_stored(stored: object) -> list[Fence]:
    """What `to_stored` gave. Raises ``BadMessageError``."""
    document = stored if isinstance(stored, dict) else {}
    items, users = document.get("fences"), document.get("users", {})
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise BadMessageError("no list of fences")
    if not isinstance(users, dict):
        raise BadMessageError("no users of fences")
    fences = [parse(Fence, item) for item in items]
    return [parse(Fence, fence.model_dump() | {"uid": users.get(fence.id)}) for fence in fences]


def _content(fence: Fence) -> tuple[str, str, str]:
    return fence.job, fence.host, fence.incarnation
