"""Which process holds which rank: the first generation of a job, and the next one.

Survivors keep their ranks. An empty rank goes to a standby process of its own host when that host
is well, else to a host without ranks, and all ranks of one lost host to one such host.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar

from fabric_train.messages.documents import AgentDocument, JobGeneration, Member, ProcessState
from fabric_train.rules.agreement import LATE

T = TypeVar("T", bound=Hashable)


class PlacementError(Exception):
    """No generation is possible. The text says why."""


class NoStateError(PlacementError):
    """No survivor holds the state: no spare can help."""


def host_order(documents: Mapping[str, AgentDocument]) -> list[str]:
    """Hosts by their launcher's place, where all have one, else by name (h2 before h10)."""
    places = {host: one.node_rank for host, one in documents.items()}
    ranked = [place for place in places.values() if place is not None]
    if len(ranked) == len(places) == len(set(ranked)):
        return sorted(documents, key=lambda host: (places[host] or 0, host))
    return sorted(documents, key=_natural)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def misfits(documents: Mapping[str, AgentDocument]) -> dict[str, str]:
    """Hosts whose command line or software is not that of most others → what is different."""
    if not documents:
        return {}
    order = host_order(documents)
    wanted = _most_common([_shape(documents[host]) for host in order])
    software = _most_common([s for host in order if (s := _software(documents[host]))] or [()])
    wrong: dict[str, str] = {}
    for host in order:
        shape, mine = _shape(documents[host]), _software(documents[host])
        if shape != wanted:
            wrong[host] = "--nodes, --spares, --nproc-per-node are {}, {}, {} here and others on " \
                "most hosts of the job".format(*shape)  # fmt: skip
        elif mine and mine != software:
            pairs = sorted(set(mine) ^ set(software))
            names = ", ".join(sorted({name for name, _ in pairs}))
            wrong[host] = f"another {names} than on most hosts of the job: {dict(mine)}"
    return wrong


def late_misfits(
    generation: JobGeneration, documents: Mapping[str, AgentDocument]
) -> dict[str, str]:
    """Hosts that joined later and do not fit, or that nobody asked for → why."""
    if not any(host in documents for host in generation.hosts):
        return {}
    late = misfits(documents)
    return {host: why for host, why in late.items() if host not in generation.hosts}


def first_generation(
    documents: Mapping[str, AgentDocument], nodes: int, after: JobGeneration | None = None
) -> JobGeneration:
    """A start from the beginning over the first ``nodes`` hosts. Raises ``PlacementError``.

    ``after``: an earlier start, which has ended before the job had state.
    """
    order = host_order(documents)
    if len(order) < nodes:
        raise PlacementError(f"{len(order)} of {nodes} hosts are here")
    slots: list[str] = []
    for host in order[:nodes]:
        mains = [one for one in documents[host].processes if not one.standby]
        if len(mains) != documents[host].nproc or any(one.state != "joined" for one in mains):
            raise PlacementError(f"not all processes of {host} have joined")
        slots += [one.process for one in mains]
    number = after.number + 1 if after else 1
    return _generation(
        number, after, slots, documents, lost=(), store_host=order[0], formed=False,
        electors=after.electorate if after else (),
    )  # fmt: skip


def next_generation(
    previous: JobGeneration,
    number: int,
    documents: Mapping[str, AgentDocument],
    layout: str,
    reason: str,
    targets: Mapping[str, str] | None = None,
    *,
    planned: bool = False,
    proved: Collection[str] = (),
    electors: Sequence[str] = (),
    left_out: Collection[tuple[str, int]] = (),
    leaving: Collection[int] = (),
) -> JobGeneration:
    """Fill the ranks of ``previous`` whose process is not alive in ``documents``.

    One that never ran, and has all of its ranks, begins from the beginning again.
    ``documents``: of hosts that may hold ranks. ``layout``: what a process has to have protected.
    ``targets``: host → the only host that may take its ranks. ``planned``: all processes of
    ``previous`` live; take no process of a host that holds ranks: those are for its own.
    ``proved``: agents of ``previous`` that need no vote, for they are known to be off.
    ``electors``: agents whose majority has to accept it; by default those of ``previous``.
    ``left_out``: host and rank of each place that is not to be used. ``leaving``: ranks that leave
    their process, though it lives.
    Raises ``PlacementError`` when a rank would stay empty, or no survivor holds the state.
    """
    alive = {
        one.process: (host, one)
        for host, document in documents.items()
        for one in document.processes
        if one.state != "ended"
    }
    kept = [
        slot if slot in alive and rank not in leaving else ""
        for rank, slot in enumerate(previous.slots)
    ]
    survivors = [alive[slot][0] for slot in kept if slot]
    # A rank of a generation that never ran has got no state yet.
    if not any(_holds_state(alive[slot][1]) for slot in kept if slot):
        if previous.formed or not all(kept):
            raise NoStateError("all ranks are lost, and with them the state")
        return _generation(
            number, previous, kept, documents, lost=[], store_host=survivors[0], reason=reason,
            formed=False, electors=previous.electorate,
        )  # fmt: skip
    waiting: dict[str, list[str]] = {}
    for process, (host, one) in alive.items():
        busy = planned and host in survivors
        if _is_spare(one, layout) and not previous.has_rank(process) and not busy:
            waiting.setdefault(host, []).append(process)
    empty: dict[str, list[int]] = {}
    for rank, home in enumerate(previous.hosts):
        if not kept[rank]:
            empty.setdefault(home, []).append(rank)
    for home, ranks in sorted(empty.items(), key=lambda one: _natural(one[0])):
        target = (targets or {}).get(home)
        choice = {target: waiting.get(target, [])} if target else waiting
        for rank in [one for one in ranks if any(place[1] == one for place in left_out)]:
            ranks.remove(rank)
            elsewhere = {
                host: free for host, free in choice.items() if (host, rank) not in left_out
            }
            kept[rank] = next(iter(_choose(home, 1, elsewhere, survivors)), "")
        for rank, spare in zip(ranks, _choose(home, len(ranks), choice, survivors), strict=False):
            kept[rank] = spare
    if not all(kept):
        missing = [rank for rank, slot in enumerate(kept) if not slot]
        names = ", ".join(map(str, missing))
        places = [f"rank {rank} on {host}" for host, rank in sorted(left_out) if rank in missing]
        but = f", and {', '.join(places)} is left out" if places else ""
        raise PlacementError(f"no warm spare for rank {names}{but}")
    lost = [rank for rank, slot in enumerate(kept) if slot != previous.slots[rank]]
    return _generation(
        number, previous, kept, documents, lost=lost, store_host=survivors[0], reason=reason,
        planned=planned, proved=proved, electors=electors or previous.electorate,
    )  # fmt: skip


def what_would_move(
    previous: JobGeneration, documents: Mapping[str, AgentDocument], layout: str, reason: str
) -> str:
    """What ``next_generation`` would do, for people."""
    try:
        then = next_generation(previous, previous.number + 1, documents, layout, reason)
    except PlacementError as error:
        return f"could not have helped: {error}"
    moves = ", ".join(f"rank {rank} to {then.slots[rank]}" for rank in then.lost)
    return f"would have moved {moves}"


def members_of(documents: Mapping[str, AgentDocument]) -> list[Member]:
    """The agents of a generation, by their launcher's place or by name."""
    ordered = [(host, documents[host]) for host in host_order(documents)]
    return [
        Member(host, one.incarnation, one.address, one.store, one.token, one.seal)
        for host, one in ordered
    ]


def _choose(
    home: str, ranks: int, waiting: Mapping[str, list[str]], survivors: Sequence[str]
) -> list[str]:
    """Take up to ``ranks`` processes out of ``waiting``, for the ranks that ``home`` had."""
    chosen: list[str] = []
    while len(chosen) < ranks and any(waiting.values()):
        left = ranks - len(chosen)
        host = min(
            (host for host, processes in waiting.items() if processes),
            key=lambda host: (
                host != home,
                host in survivors,  # an idle host first
                len(waiting[host]) < left,  # then one that has room for all
                -len(waiting[host]),
                _natural(host),
            ),
        )
        take = waiting[host][:left]
        del waiting[host][: len(take)]
        chosen += take
    return chosen


def _holds_state(process: ProcessState) -> bool:
    return process.committed > 0 or process.recovered > 0


def _is_spare(process: ProcessState, layout: str) -> bool:
    return process.state == "warm" and process.layout in (layout, LATE)


def _generation(
    number: int,
    base: JobGeneration | None,
    slots: list[str],
    documents: Mapping[str, AgentDocument],
    *,
    lost: Sequence[int],
    store_host: str,
    reason: str = "",
    planned: bool = False,
    formed: bool = True,
    proved: Collection[str] = (),
    electors: Sequence[str] = (),
) -> JobGeneration:
    members = members_of(documents)
    electorate = sorted(f"{one.host}/{one.incarnation}" for one in members)
    places = {one.process: host for host, doc in documents.items() for one in doc.processes}
    return JobGeneration(
        number=number,
        base=base.number if base else 0,
        slots=slots,
        hosts=[places[slot] for slot in slots],
        electorate=electorate,
        voters=[one for one in electors or electorate if one not in proved],
        members=members,
        store=documents[store_host].store,
        formed=formed,
        lost=list(lost),
        reason=reason,
        planned=planned,
    )


def _shape(document: AgentDocument) -> tuple[int, int, int]:
    return document.nodes, document.spares, document.nproc


def _software(document: AgentDocument) -> tuple[tuple[str, str], ...]:
    """Of its first process that has joined."""
    for one in document.processes:
        if one.software:
            return tuple(sorted(one.software.items()))
    return ()


def _most_common(values: Sequence[T]) -> T:
    """The first of the most common ones."""
    counts = Counter(values)
    return max(values, key=lambda value: counts[value])
