"""Why a host was fenced and its ranks moved, or why not. Pure: what is stored goes in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compute.decide.evidence import NO_EVIDENCE
from compute.ledger import Entry
from telemetry.messages.documents import ComputeJob, HostEvidence

Row = dict[str, Any]
ABOUT = ("host", "to")
"""Fields of a record that name one host."""


@dataclass(frozen=True)
class Operators:
    """What operators have said. ``drained``: host → its replacement, or ""."""

    mode: str = "observe"
    stopped: str = ""
    """Why, or "": not stopped by the file."""
    drained: Mapping[str, str] | None = None
    maintenance: Sequence[str] = ()


def explain(
    host: str,
    jobs: Iterable[tuple[ComputeJob, float]],
    entries: Iterable[Entry],
    operators: Operators,
) -> Row | None:
    """All that is known of ``host``; None: nothing is.

    Args:
        host: its name.
        jobs: the newest state of each job, and its time in seconds since 1970.
        entries: of the ledger, oldest first; those that do not concern the host are left out.
        operators: what operators have said.
    """
    history = [record for record in map(_record, entries) if concerns(record, host)]
    parts = [_part(job, wall, host) for job, wall in jobs if host in job.hosts]
    drained = operators.drained or {}
    if not (history or parts or host in drained or host in operators.maintenance):
        return None
    return {
        "host": host,
        "mode": operators.mode,
        "stopped": operators.stopped,
        "drained": host in drained,
        "replacement": drained.get(host, ""),
        "maintenance": host in operators.maintenance,
        "jobs": [part | {"answer": _answer(part, history, host, operators)} for part in parts],
        "history": history,
    }


def explain_job(
    name: str, jobs: Iterable[tuple[ComputeJob, float]], entries: Iterable[Entry]
) -> Row | None:
    """How job ``name`` is, which ranks slow it down, and what the ledger has of it; None: nothing.

    ``jobs`` and ``entries`` are as those of ``explain``.
    """
    state, wall = next(((job, wall) for job, wall in jobs if job.job == name), (None, 0.0))
    history = [one for one in map(_record, entries) if one["fields"].get("job") == name]
    if state is None and not history:
        return None
    known = state or ComputeJob(job=name, phase="gone")
    return {
        "job": name,
        "phase": known.phase,
        "reason": known.reason,
        "generation": known.generation,
        "ranks": {rank: place.partition(" ")[0] for rank, place in known.ranks.items()},
        "evidence": [one.model_dump(mode="json") for one in known.evidence],
        "slow_ranks": [one.model_dump(mode="json") for one in known.slow_ranks],
        "time": wall,
        "history": history,
    }


def concerns(record: Row, host: str) -> bool:
    """Whether a record of the ledger is about ``host``."""
    fields = record["fields"]
    if host in [fields.get(name) for name in ABOUT]:
        return True
    lists = [fields.get(name) for name in ("from", "to", "hosts")]
    return any(isinstance(one, list) and host in one for one in lists)


def _record(entry: Entry) -> Row:
    record = entry.record
    fields = record["fields"]
    return {
        "number": entry.number, "time": record["time"], "kind": record["kind"],
        "fields": fields if isinstance(fields, dict) else {},
    }  # fmt: skip


def _part(job: ComputeJob, wall: float, host: str) -> Row:
    evidence = next((one for one in job.evidence if one.host == host), None)
    return {
        "job": job.job,
        "phase": job.phase,
        "reason": job.reason,
        "generation": job.generation,
        "ranks": sorted(
            int(rank) for rank, place in job.ranks.items() if place.partition(" ")[0] == host
        ),
        "spares": sum(place.partition(" ")[0] == host for place in job.spares),
        "evidence": evidence.model_dump(mode="json") if evidence else None,
        "slow_ranks": [one.model_dump(mode="json") for one in job.slow_ranks if one.host == host],
        "time": wall,
    }


def _answer(part: Row, history: Sequence[Row], host: str, operators: Operators) -> str:
    evidence = HostEvidence.model_validate(part["evidence"]) if part["evidence"] else None
    moved = _moved(history, part["job"], host)
    if part["ranks"]:
        return f"not moved: {_why_not(part, evidence, host, operators)}"
    if moved is not None:
        return moved
    if evidence is not None and evidence.fence:
        return f"fenced ({evidence.reason}), but its ranks are nowhere yet: {part['reason']}"
    return "it has no rank" + (", and is a spare" if part["spares"] else "")


def _moved(history: Sequence[Row], job: str, host: str) -> str | None:
    """Where the ranks of ``host`` went, by the newest recovery that took any away from it."""
    for record in reversed(history):
        fields = record["fields"]
        if record["kind"] != "recovery" or fields.get("job") != job:
            continue
        went = {
            rank: to
            for rank, origin, to in zip(
                *(fields.get(name, ()) for name in ("ranks", "from", "to")), strict=False
            )
            if origin == host != to
        }
        if went:
            where = ", ".join(f"rank {rank} to {to}" for rank, to in went.items())
            return (
                f"moved: {where} in generation {fields.get('generation')} "
                f"({fields.get('class')}: {fields.get('reason')})"
            )
    return None


def _why_not(part: Row, evidence: HostEvidence | None, host: str, operators: Operators) -> str:
    if host in operators.maintenance:
        return "it is in maintenance: nothing is decided over it"
    if operators.stopped:
        return f"stopped: {operators.stopped}"
    if evidence is None:
        drained = host in (operators.drained or {})
        return str(part["reason"]) if drained and part["reason"] else NO_EVIDENCE
    if not evidence.lost or "not fenced: " in evidence.rule:
        return f"{evidence.rule} ({evidence.reason})"
    if operators.mode == "observe":
        return f"mode observe; {evidence.rule} ({evidence.reason})"
    if evidence.fence:
        return f"it is fenced, and job {part['job']} waits: {part['reason']}"
    return f"{part['reason']} ({evidence.reason})"
