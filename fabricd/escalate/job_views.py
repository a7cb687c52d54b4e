"""What the fabric-computes say of the jobs in which this host has a part. Pure.

Each fabric-compute says all that this host may know in one message. Of a job the word of the most
advanced one counts that is connected to the broker. What changes becomes rows of the timeline, once
each: also when two fabric-computes say it, or one says it again after a restart of this daemon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from telemetry.events import EventKind, JsonScalar
from telemetry.messages.documents import ComputeJob, ComputeView, HostEvidence, Recovery

MOST_JOBS = 256
MOST_EVIDENCE = 256
MOST_IDS = 4096
MOST_MOVES = 4
"""Moves of ranks that one text names."""
PHASES = ("proposed", "waiting", "running", "held", "ended", "failed")
"""Of two fabric-computes that know one generation, the later one in this row knows more."""
TOLD = ("running", "held", "ended", "failed")
"""Phases that become rows of the timeline."""


@dataclass(frozen=True)
class JobRow:
    """A row for the timeline. ``id`` is the same whoever says it, and however often."""

    kind: EventKind
    reason: str
    id: str
    data: dict[str, JsonScalar] = field(default_factory=dict)


@dataclass
class _Known:
    """The newest state of a job. ``present``: this host still has a part in it."""

    state: ComputeJob
    compute: str
    at: int
    present: bool = True


class JobViews:
    """Times are CLOCK_MONOTONIC ns."""

    def __init__(self) -> None:
        self._views: dict[str, ComputeView] = {}
        self._offline: set[str] = set()
        self._jobs: dict[str, _Known] = {}
        self._evidence: dict[tuple[str, str], tuple[HostEvidence, int]] = {}
        self._ids: dict[str, None] = {}
        self._phases: dict[str, str] = {}
        """Job → id of its newest row of kind `EventKind.GENERATION`."""
        self._slow: dict[str, dict[int, str]] = {}
        """Job → rank that the newest row about it calls slow → its host."""

    def restore(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Rows of the timeline that an earlier daemon wrote, oldest first: not written again."""
        for row in rows:
            data = row.get("data") or {}
            name, job = data.get("id"), data.get("job")
            if not isinstance(name, str) or not isinstance(job, str):
                continue
            if row["kind"] == EventKind.GENERATION.value:
                self._phases[job] = name
            elif row["kind"] == EventKind.SLOW_RANK.value:
                self._restore_slow(job, data)
            else:
                self._note(name)

    # -- from fabric-compute ----------------------------------------------------------------------

    def status(self, compute: str, *, online: bool, now: int) -> list[JobRow]:
        """A fabric-compute is there or not: of one that is not, others know better."""
        if online:
            self._offline.discard(compute)
        else:
            self._offline.add(compute)
        return self._merge(now)

    def update(self, compute: str, view: ComputeView | None, now: int) -> list[JobRow]:
        """The newest view of one fabric-compute; None: cleared. Returns new rows."""
        if view is None:
            self._views.pop(compute, None)
        else:
            self._views[compute] = view
            for job in view.jobs:
                for found in job.evidence:
                    self._evidence.pop((job.job, found.host), None)
                    self._evidence[job.job, found.host] = self._strongest(job.job, found), now
            while len(self._evidence) > MOST_EVIDENCE:
                del self._evidence[next(iter(self._evidence))]
        rows = self._merge(now)
        for job in view.jobs if view else ():
            for one in reversed(job.recoveries):
                row = recovery_row(job.job, one)
                if row.id not in self._ids:
                    self._note(row.id)
                    rows.append(row)
        return rows

    def _strongest(self, name: str, found: HostEvidence) -> HostEvidence:
        """``found``, or what another fabric-compute says of that host by which it is fenced."""
        if found.fence:
            return found
        said = (
            one
            for view in self._views.values()
            for job in view.jobs
            if job.job == name
            for one in job.evidence
            if one.host == found.host and one.fence
        )
        return next(said, found)

    def _note(self, name: str) -> None:
        self._ids[name] = None
        while len(self._ids) > MOST_IDS:
            del self._ids[next(iter(self._ids))]

    def _merge(self, now: int) -> list[JobRow]:
        best: dict[str, tuple[tuple[bool, int, int], str, ComputeJob]] = {}
        for compute, view in sorted(self._views.items()):
            for job in view.jobs:
                phase = PHASES.index(job.phase) if job.phase in PHASES else -1
                rank = (compute not in self._offline, job.generation, phase)
                if job.job not in best or rank > best[job.job][0]:
                    best[job.job] = rank, compute, job
        rows: list[JobRow] = []
        for name, (_, compute, state) in best.items():
            known = self._jobs.get(name)
            if known is not None and known.present and known.state == state:
                known.compute = compute
                continue
            row = phase_row(known.state if known else None, state)
            if row is not None and self._phases.get(name) != row.id:
                self._phases[name] = row.id
                rows.append(row)
            rows += self._slow_rows(state)
            self._jobs.pop(name, None)
            self._jobs[name] = _Known(state, compute, now)
        for name, known in self._jobs.items():
            known.present = name in best
        while len(self._jobs) > MOST_JOBS:
            oldest = next((n for n, one in self._jobs.items() if not one.present), None)
            del self._jobs[oldest or next(iter(self._jobs))]
        for name in self._slow.keys() - self._jobs.keys():
            del self._slow[name]
        return rows

    def _restore_slow(self, job: str, data: Mapping[str, Any]) -> None:
        rank, host = data.get("rank"), data.get("host")
        if isinstance(rank, int) and isinstance(host, str):
            self._slow.setdefault(job, {}).pop(rank, None)
            if data.get("named"):
                self._slow[job][rank] = host

    def _slow_rows(self, state: ComputeJob) -> list[JobRow]:
        before = self._slow.get(state.job, {})
        slow = {one.rank: one for one in state.slow_ranks}
        self._slow[state.job] = {rank: one.host for rank, one in slow.items()}
        rows = [
            slow_row(state, rank, one.host, one.text, one.ratio)
            for rank, one in slow.items() if before.get(rank) != one.host
        ]  # fmt: skip
        return rows + [
            slow_row(state, rank, host, f"rank {rank} on {host} is not called slow any more")
            for rank, host in before.items() if rank not in slow
        ]  # fmt: skip

    # -- for people -------------------------------------------------------------------------------

    @property
    def computes(self) -> dict[str, bool]:
        """Fabric-computes that say something of this host's jobs → connected to the broker."""
        return {name: name not in self._offline for name in sorted(self._views)}

    def jobs(self, now: int) -> list[dict[str, Any]]:
        """All known jobs by name, as JSON values; ``present`` False: over for this host."""
        return [
            {
                "job": name,
                "phase": one.state.phase,
                "reason": one.state.reason,
                "generation": one.state.generation,
                "ranks": {rank: _place(place) for rank, place in one.state.ranks.items()},
                "spares": [_place(place) for place in one.state.spares],
                "hosts": one.state.hosts,
                "suspected": [row.host for row in one.state.evidence if not row.fence],
                "fenced": [row.host for row in one.state.evidence if row.fence],
                "slow_ranks": [row.text for row in one.state.slow_ranks],
                "present": one.present,
                "compute": one.compute,
                "age_s": round((now - one.at) / 1e9, 1),
            }
            for name, one in sorted(self._jobs.items())
        ]

    def hosts(self) -> set[str]:
        """Hosts of the known jobs, and those with evidence."""
        found = {host for _, host in self._evidence}
        for one in self._jobs.values():
            found.update(one.state.hosts)
        return found

    def evidence(self, host: str, now: int) -> list[dict[str, Any]]:
        """Of each job with ``host``: the newest evidence, as JSON values.

        ``current`` False: it is what was said last, and no fabric-compute says it any more.
        """
        rows = []
        for name in sorted({*self._jobs, *(job for job, one in self._evidence if one == host)}):
            known = self._jobs.get(name)
            found, at = self._evidence.get((name, host), (None, 0))
            if found is None and (known is None or host not in known.state.hosts):
                continue
            now_said = known.state.evidence if known is not None and known.present else ()
            rows.append(
                {
                    "job": name,
                    "compute": known.compute if known else None,
                    "generation": known.state.generation if known else None,
                    "ranks": _ranks_on(known.state, host) if known else [],
                    "present": known.present if known else False,
                    "evidence": found.model_dump(mode="json") if found else None,
                    "current": any(one.host == host for one in now_said),
                    "age_s": round((now - at) / 1e9, 1) if found else None,
                }
            )
        return rows


def _place(text: str) -> dict[str, str]:
    host, _, process = text.partition(" ")
    return {"host": host, "process": process}


def _ranks_on(state: ComputeJob, host: str) -> list[int]:
    return sorted(
        int(rank) for rank, place in state.ranks.items()
        if rank.isdecimal() and place.partition(" ")[0] == host
    )  # fmt: skip


def phase_row(before: ComputeJob | None, state: ComputeJob) -> JobRow | None:
    """The row that says in which phase and generation a job is now; None: not worth one."""
    if state.phase not in TOLD:
        return None
    name = f"job {state.job}"
    if state.phase == "running":
        text = f"running: {name}, generation {state.generation}"
        if state.reason:
            text += f": {state.reason}"
    else:
        text = f"{state.phase}: {name}, generation {state.generation}: {state.reason}"
    same = before is not None and before.proposal == state.proposal
    moved = "" if before is None or same else _moved(before, state)
    data: dict[str, JsonScalar] = {
        "job": state.job, "generation": state.generation, "phase": state.phase,
        "ranks": len(state.ranks), "spares": len(state.spares),
    }  # fmt: skip
    would = state.phase == "running" and state.reason.startswith("would ")
    ident = f"{state.job}/{state.proposal}/{'would' if would else state.phase}"
    return JobRow(
        EventKind.GENERATION, text + (f"; {moved}" if moved else ""), ident, data | {"id": ident}
    )


def _moved(before: ComputeJob, state: ComputeJob) -> str:
    changed = [
        (rank, before.ranks[rank].partition(" ")[0], place.partition(" ")[0])
        for rank, place in state.ranks.items()
        if before.ranks.get(rank, place) != place
    ]
    return moves([int(one) for one, _, _ in changed if one.isdecimal()],
                 [origin for _, origin, _ in changed],
                 [target for _, _, target in changed])  # fmt: skip


def moves(ranks: list[int], origins: list[str], targets: list[str]) -> str:
    """E.g. ``rank 2 moved from h2 to h4, ranks 0 and 1 were replaced on h1``."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, origin, target in zip(ranks, origins, targets, strict=False):
        groups.setdefault((origin, target), []).append(rank)
    if len(groups) > MOST_MOVES:
        return f"{len(ranks)} ranks changed places"
    texts = []
    for (origin, target), found in groups.items():
        one = len(found) == 1
        what = f"rank {found[0]}" if one else f"ranks {', '.join(map(str, found))}"
        if origin == target:
            texts.append(f"{what} {'was' if one else 'were'} replaced on {target}")
        else:
            texts.append(f"{what} moved from {origin} to {target}")
    return ", ".join(texts)


def recovery_row(job: str, one: Recovery) -> JobRow:
    """The row of a takeover that has ended, or of the failure of a job."""
    ident = f"{job}/{one.proposal}/{one.failure_class}"
    if one.outcome == "failed":
        text = f"failed: job {job}, generation {one.generation}, at step {one.step}: {one.reason}"
    else:
        what = moves(one.ranks, one.origins, one.targets) or "all ranks connected anew"
        took = "" if one.committed_ms is None else f" in {one.committed_ms:.0f} ms"
        text = (
            f"recovered: {what}, job {job}, generation {one.generation}{took}, "
            f"{one.steps_lost} steps lost ({one.failure_class}: {one.reason})"
        )
    data: dict[str, JsonScalar] = {
        "id": ident, "job": job, "generation": one.generation, "class": one.failure_class,
        "outcome": one.outcome, "cause": one.reason,
        "ranks": ",".join(map(str, one.ranks)), "origins": ",".join(one.origins),
        "targets": ",".join(one.targets), "step": one.step, "steps_lost": one.steps_lost,
        "fenced_ms": one.fenced_ms, "proposed_ms": one.proposed_ms,
        "running_ms": one.running_ms, "recovered_ms": one.recovered_ms,
        "committed_ms": one.committed_ms,
    }  # fmt: skip
    return JobRow(EventKind.MIGRATION, text, ident, data)


def slow_row(
    state: ComputeJob, rank: int, host: str, text: str, ratio: float | None = None
) -> JobRow:
    """The row of a rank that is slower than the others by ``ratio``; None: it is not any more."""
    named = ratio is not None
    ident = f"{state.job}/{state.proposal}/rank {rank}/{'slow' if named else 'not slow'}"
    data: dict[str, JsonScalar] = {
        "id": ident, "job": state.job, "generation": state.generation, "rank": rank, "host": host,
        "named": named,
    }  # fmt: skip
    if ratio is not None:
        data["ratio"] = ratio
    return JobRow(EventKind.SLOW_RANK, f"job {state.job}: {text}", ident, data)


def migration(row: Mapping[str, Any]) -> dict[str, Any]:
    """A `EventKind.MIGRATION` row of the timeline as ``fabricctl migrations`` shows it."""
    data = dict(row.get("data") or {})
    data.pop("id", None)
    lists = {
        "ranks": [int(one) for one in _split(data.pop("ranks", ""))],
        "from": _split(data.pop("origins", "")),
        "to": _split(data.pop("targets", "")),
    }
    return {"wall_ns": row["wall_ns"], "reason": data.pop("cause", "")} | lists | data


def _split(text: object) -> list[str]:
    return [one for one in str(text).split(",") if one]
