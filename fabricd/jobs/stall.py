"""Why a job stands or is slow, as far as one host knows: ``fabricctl explain job``. Pure.

Two looks at the stats pages of the job's processes say whether its bytes move, and which peers it
waits for. What may be the cause is what is known to be at fault on the job's way: located faults of
its links, of its peers and of what joins them, silent peers, own links that are not well, slow
rails. A fault elsewhere in the fabric is none. Where nothing is at fault and bytes wait for a peer,
the process there does not take them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fabricd.detect.locate import Blame, Kind
from telemetry.events import LinkState

Document = Mapping[str, Any]
NOT_WELL = frozenset({LinkState.DOWN, LinkState.DEGRADED, LinkState.HOLD, LinkState.SUSPECT})


@dataclass(frozen=True, slots=True)
class JobLink:
    """One link of this host; ``leaf`` is the switch that it is plugged into."""

    netdev: str
    rail: int
    leaf: str
    state: LinkState
    reason: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the daemon knows beside the job's own pages.

    Attributes:
        host: its name.
        links: all of them.
        faults: located now.
        silent: hosts that nothing is heard of on any rail.
        probed: hosts that are probed. Where all of them are silent this host is cut off.
        peers: address → host, of all addresses in the configuration.
        slow: netdev → why that rail is slower than its siblings.
    """

    host: str
    links: Sequence[JobLink]
    faults: Sequence[Blame] = ()
    silent: frozenset[str] = frozenset()
    probed: frozenset[str] = frozenset()
    peers: Mapping[str, str] | None = None
    slow: Mapping[str, str] | None = None


def explain_job(
    before: Document, after: Document, job: str, around: Surroundings, uid: int | None = None
) -> Document:
    """What ``fabricctl explain job`` answers.

    Args:
        before: `telemetry.livejobs.live_jobs`.
        after: the same a moment later.
        job: its name, whole.
        around: what else is known.
        uid: of its user, where others have a job of that name; None: whoever has it.

    Returns:
        ``processes`` of it here; ``seconds`` between the looks; ``bytes_s`` moved; ``stands``:
        bytes are under way and none moved; ``stalled_s``: time without a path that moves, over all
        communicators; ``waits_for``: peers whose bytes do not move; ``causes``: ``part``,
        ``element`` and ``text`` of each, the likeliest first; ``incomplete``: what of it this
        answer may lack, for people; ``uids``: whose processes they are.
    """
    seconds = max(1e-9, (after["time_ns"] - before["time_ns"]) / 1e9)
    earlier = {_key(process): process for process in before["processes"]}
    processes = [
        process for process in after["processes"]
        if process["job"] == job and uid in (None, process["uid"])
    ]  # fmt: skip
    moved = stalled = in_flight = 0
    hosts: set[str] = set()
    netdevs: set[str] = set()
    waits: set[str] = set()
    for process in processes:
        then = earlier.get(_key(process))
        for rail, was in _rails(process, then):
            netdevs.add(rail["netdev"])
            in_flight += rail["in_flight_bytes"]
            for counter in ("tx_bytes", "rx_bytes"):
                moved += max(0, rail[counter] - was[counter])
            stalled += max(0, rail["stall_ns"] - was["stall_ns"])
        for group, was in _groups(process, then):
            peer = (around.peers or {}).get(group["address"], group["address"])
            if peer and group["comms"]:
                hosts.add(peer)
            still = all(group[counter] == was[counter] for counter in ("bytes", "messages"))
            if peer and group["in_flight_bytes"] and was["in_flight_bytes"] and still:
                waits.add(peer)
    stands = bool(in_flight) and not moved
    causes = list(_causes(around, hosts, netdevs))
    if not causes:
        causes = [_process(peer) for peer in sorted(waits)]
    return {
        "job": job,
        "uids": sorted({process["uid"] for process in processes}),
        "host": around.host,
        "processes": len(processes),
        "seconds": round(seconds, 2),
        "bytes_s": round(moved / seconds),
        "stands": stands,
        "stalled_s": round(stalled / 1e9, 3),
        "peers": sorted(hosts),
        "waits_for": sorted(waits),
        "causes": causes,
        "incomplete": list(_incomplete(after, processes)),
    }


def _incomplete(look: Document, processes: Sequence[Document]) -> Iterator[str]:
    if look.get("left_out"):
        yield f"{look['left_out']} processes of this host were not looked at: too many"
    if partial := look.get("scan", {}).get("partial"):
        yield f"not all stats pages were read: {partial}"
    crowded = sum(
        any(not one["address"] and one["comms"] for one in process["groups"])
        for process in processes
    )
    if crowded:
        yield f"{crowded} of its processes have more peers than their pages tell apart"


def _key(process: Document) -> tuple[int, int, int]:
    return process["uid"], process["pid"], process["start_ns"]


def _rails(now: Document, then: Document | None) -> Iterator[tuple[Document, Document]]:
    """Each rail with what it was; a process that was not there moved nothing yet."""
    old = {rail["netdev"]: rail for rail in then["rails"]} if then else {}
    for rail in now["rails"]:
        yield rail, old.get(rail["netdev"], rail)


def _groups(now: Document, then: Document | None) -> Iterator[tuple[Document, Document]]:
    def key(group: Document) -> tuple[str, int, str]:
        return group["address"], group["incarnation"], group["direction"]

    old = {key(group): group for group in then["groups"]} if then else {}
    for group in now["groups"]:
        yield group, old.get(key(group), group)


def _causes(around: Surroundings, hosts: set[str], netdevs: set[str]) -> Iterator[dict[str, str]]:
    own = [link for link in around.links if link.netdev in netdevs]
    ports = {f"{host}/{link.rail}" for host in {*hosts, around.host} for link in own}
    leaves = {link.leaf for link in own}
    told: set[tuple[str, str]] = set()

    def cause(part: str, element: str, text: str) -> Iterator[dict[str, str]]:
        if (part, element) not in told:
            told.add((part, element))
            yield {"part": part, "element": element, "text": text}

    if len(around.probed) > 1 and around.probed <= around.silent:
        text = f"host {around.host}: hears nobody on any rail, so it is this host that is cut off"
        yield from cause("host", around.host, text)
        return
    for blame in around.faults:
        if _concerns(blame, hosts | {around.host}, ports, leaves):
            yield from cause(blame.kind.value, blame.element, str(blame))
    for host in sorted(around.silent & hosts):
        yield from cause("host", host, f"host {host}: silent on all rails")
    placed = {element for _, element in told}
    for link in own:
        element = f"{around.host}/{link.rail}"
        if link.state in NOT_WELL and not placed & {element, link.leaf, around.host}:
            text = f"link {element} ({link.netdev}) is {link.state.name.lower()}: {link.reason}"
            yield from cause("link", element, text)
        elif (slow := (around.slow or {}).get(link.netdev)) is not None:
            yield from cause("link", element, f"link {element} ({link.netdev}) is slow: {slow}")


def _concerns(blame: Blame, hosts: set[str], ports: set[str], leaves: set[str]) -> bool:
    """Whether the job's bytes may pass what is at fault."""
    match blame.kind:
        case Kind.LINK:
            return blame.element in ports
        case Kind.HOST:
            return blame.element in hosts
        case Kind.LEAF:
            return blame.element in leaves
        case Kind.PATH:
            return any(f"{a}-{b}" == blame.element for a in ports for b in ports)
        case Kind.SPINE:
            return True
        case _:
            return False


def _process(peer: str) -> dict[str, str]:
    text = (
        f"bytes wait for {peer}, and nothing on the way is known to be at fault: its process does "
        "not take them (stopped, busy, or waiting itself)"
    )
    return {"part": "process", "element": peer, "text": text}
