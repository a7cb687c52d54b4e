"""Whose word counts for a job: that of its members. Pure.

Who came after the newest generation was formed has no part in it yet. It may say that it follows
that generation, as a spare has to; what else it says of the job counts once it is a member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import replace

from fabric_train.messages.documents import AgentDocument, JobGeneration


def members_words(
    known: JobGeneration | None, documents: Mapping[str, AgentDocument]
) -> dict[str, AgentDocument]:
    """``documents``; of who is no member, without failures, suspicions and generations of its own.

    Members are those of the generation that is ``known`` here, and of the one that most agents have
    accepted: another fabric-compute may be ahead. While there is none, all are.
    """
    accepted = {host: one.accepted for host, one in documents.items() if one.accepted is not None}
    if known is None and not accepted:
        return dict(documents)
    members = set(known.electorate) if known is not None else set()
    if accepted:
        most = Counter(one.proposal for one in accepted.values())
        members.update(
            max(accepted.values(), key=lambda one: (most[one.proposal], one.number)).electorate
        )
    late = {
        host: one for host, one in documents.items() if f"{host}/{one.incarnation}" not in members
    }
    if not late:
        return dict(documents)
    theirs = {one.proposal for host, one in accepted.items() if host not in late}
    if known is not None:
        theirs.add(known.proposal)
    return {
        host: _without_a_say(one, theirs) if host in late else one
        for host, one in documents.items()
    }


def _without_a_say(document: AgentDocument, theirs: Container[str]) -> AgentDocument:
    accepted, running = document.accepted, document.running
    if accepted is not None and accepted.proposal not in theirs:
        accepted, running = None, 0
    return replace(document, failed="", suspects=0, accepted=accepted, running=running)
