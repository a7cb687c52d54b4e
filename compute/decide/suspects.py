"""Hosts of a job of which people have to know something: suspects, fenced ones, broken places."""

from __future__ import annotations

from collections.abc import Mapping

from compute.decide.evidence import Verdict
from compute.decide.job_state import Suspect
from compute.decide.known_job import KnownJob
from compute.decide.observers import Observers

LEFT_OUT = "not lost: a place of a rank on it is not used again"
"""Until ``fabric-compute confirm-repaired`` names the host."""


def suspects(job: KnownJob, observers: Observers, refused: Mapping[str, str]) -> list[Suspect]:
    """Hosts that somebody speaks against, fenced ones, and those with broken places, by name.

    ``refused``: host → why it must not be fenced now.
    """
    found = []
    broken: dict[str, list[str]] = {}
    for (host, rank), why in sorted(job.core.slots.left_out.items()):
        broken.setdefault(host, []).append(f"rank {rank}: {why}")
    for host, agent in sorted(job.agents.items()):
        fence = job.fences.get(agent.fence_id)
        verdict = job.fenced.get(fence.id) if fence else job.evidence.get(host)
        if fence is not None:
            acknowledged = observers.acknowledged(fence.id)
            found.append(Suspect(host, verdict, fence, acknowledged=acknowledged))
        elif verdict is not None and verdict.votes.any_against:
            held = refused.get(host, "") if verdict.lost else ""
            found.append(Suspect(host, verdict, held=held))
        elif host in broken:
            found.append(Suspect(host, Verdict(False, "; ".join(broken[host]), rule=LEFT_OUT)))
    return found
