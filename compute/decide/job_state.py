"""The state of a job as its hosts and people read it. Pure: documents and verdicts go in.

What a job's own processes say (names, steps) may be anything: it is shortened until it fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compute.decide.effects import Record
from compute.decide.evidence import Verdict
from compute.decide.recovery import JobRecord
from compute.decide.slow_ranks import SlowRank
from fabric_train.messages.documents import AgentDocument, JobGeneration
from telemetry.messages.documents import (
    LONGEST_PLACE,
    MOST_NAMES,
    MOST_SPARES,
    ComputeJob,
    Fence,
    HostEvidence,
    RankSlowness,
    Recovery,
)

MOST_RECOVERIES = 16
MOST_EVIDENCE = 64
MOST_SLOW = 64
LONGEST_TEXT = 2000
NOT_KNOWN = "fenced earlier: the votes are in the ledger of the fabric-compute that did it"
_LISTS = ("silent", "heard", "abstained", "missed_by", "heard_by")
_TIMES = ("fenced_ms", "proposed_ms", "running_ms", "recovered_ms", "committed_ms")


@dataclass(frozen=True)
class Suspect:
    """What is known of one host of a job.

    ``verdict``: of now, or of the fence; None: the fence is of an earlier life of this process.
    ``held``: why the host is not fenced although it is lost. ``acknowledged``: by hosts.
    """

    host: str
    verdict: Verdict | None
    fence: Fence | None = None
    held: str = ""
    acknowledged: Sequence[str] = ()


def job_state(
    job: str,
    phase: str,
    reason: str,
    generation: JobGeneration | None,
    agents: Mapping[str, AgentDocument | None],
    suspects: Sequence[Suspect],
    recoveries: Sequence[Recovery],
    slow: Sequence[SlowRank] = (),
) -> ComputeJob:
    """All of it. ``agents``: host → newest document; None: it is fenced, or has ended."""
    slots: Sequence[str] = generation.slots if generation else ()
    places = zip(generation.hosts, slots, strict=True) if generation else ()
    return ComputeJob(
        job=job,
        phase=phase,
        reason=_text(reason),
        generation=_count(generation.number) if generation else 0,
        proposal=generation.proposal if generation else "",
        ranks={str(rank): _place(f"{host} {slot}") for rank, (host, slot) in enumerate(places)},
        spares=sorted(
            _place(f"{host} {one.process}")
            for host, document in agents.items()
            if document is not None
            for one in document.processes
            if one.state == "warm" and not (generation and generation.has_rank(one.process))
        )[:MOST_SPARES],
        hosts=sorted(agents),
        evidence=[_evidence(one) for one in suspects[:MOST_EVIDENCE]],
        recoveries=list(recoveries[:MOST_RECOVERIES]),
        slow_ranks=[
            RankSlowness(
                rank=one.rank, host=_place(one.host), ratio=one.ratio, text=_text(one.text)
            )
            for one in (slow[:MOST_SLOW] if phase == "running" else ())
        ],
    )


def is_urgent(before: ComputeJob | None, state: ComputeJob) -> bool:
    """More has changed than what is observed from moment to moment."""

    def key(one: ComputeJob) -> tuple[object, ...]:
        fences = [(row.host, row.fence) for row in one.evidence if row.fence]
        return one.phase, one.reason, one.proposal, one.recoveries, fences, bool(one.hosts)

    return before is None or key(before) != key(state)


def recovery_of(record: JobRecord, generation: JobGeneration | None) -> Recovery | None:
    """The takeover or failure that a record describes; None: it describes neither."""
    fields = record.fields
    common: dict[str, Any] = {
        "proposal": generation.proposal if generation else "",
        "reason": _text(str(fields.get("reason", ""))),
        "step": _count(fields.get("step", 0)),
        "steps_lost": _count(fields.get("steps_lost", 0)),
    }
    if record.kind == "job_failed":
        number = _count(generation.number) if generation else 0
        return Recovery(generation=number, failure_class="job", outcome="failed", **common)
    if record.kind != "recovery":
        return None
    times: dict[str, Any] = {name: fields[name] for name in _TIMES}
    return Recovery(
        generation=_count(fields["generation"]), failure_class=fields["class"],
        outcome="recovered", ranks=fields["ranks"], origins=[_place(x) for x in fields["from"]],
        targets=[_place(x) for x in fields["to"]], **common, **times,
    )  # fmt: skip


def recorded(job: str, record: JobRecord) -> Record:
    """A record for the ledger, which keeps it for ever: of a text only so much as is shown."""
    fields = {name: _shortened(value) for name, value in record.fields.items()}
    return Record(record.kind, {"job": job, **fields})


def _shortened(value: object) -> object:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return [_place(one) if isinstance(one, str) else one for one in value]
    return value


def _place(text: str) -> str:
    return _text(text)[:LONGEST_PLACE]


def _text(text: str) -> str:
    """At most ``LONGEST_TEXT`` characters that are Unicode: JSON may name half a surrogate pair."""
    return text[:LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")


def _count(number: int) -> int:
    return min(max(number, 0), (1 << 63) - 1)


def _evidence(one: Suspect) -> HostEvidence:
    verdict = one.verdict or Verdict(True, one.fence.reason if one.fence else "", rule=NOT_KNOWN)
    if one.held:
        verdict = replace(verdict, rule=f"{verdict.rule}; not fenced: {one.held}")
    votes = verdict.votes
    names = {name: getattr(votes, name) for name in _LISTS} | {
        "acknowledged": tuple(one.acknowledged)
    }
    lists: dict[str, Any] = {name: list(found[:MOST_NAMES]) for name, found in names.items()}
    return HostEvidence(
        host=one.host, lost=verdict.lost, rule=_text(verdict.rule),
        reason=_text(verdict.reason), last_will=votes.last_will,
        counts={name: len(found) for name, found in names.items()} | {"agents": votes.agents},
        fence=one.fence.id if one.fence else "", **lists,
    )  # fmt: skip
