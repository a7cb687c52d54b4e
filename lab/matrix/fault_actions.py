"""How each fault of the matrix strikes a job under way, and how it is proved that it did.

Every strike follows one order: payload is flowing over what will be struck; it is struck; the
kernel's own counters or states say so while it lasts; the job goes on meanwhile (or stands still,
where every way is shut) and afterwards; what was struck carries again.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lab.faults import catalog as lf
from lab.faults.packets import PacketFault
from lab.matrix.cells import Fault
from lab.matrix.job import CellError, Job, Place
from lab.network.build import read_links

Evidence = dict[str, object]
HELD_S = 0.4
DARK_S = 3.0
STOPPED_S = 5.0


def _name(place: Place) -> str:
    return f"h{place[0]}:rail{place[1]}"


# Proof


def _packets(job: Job, fault: PacketFault) -> Evidence:
    """Packets dropped (answered) in each of its directions; waits for the first ones."""
    job.wait(lambda: all(fault.packets().values()), f"packets dropped by {fault.kind}")
    verb = "reset" if isinstance(fault, lf.ResetStorm) else "dropped"
    return {f"{verb}_{way}": count for way, count in fault.packets().items()}


def _proof(job: Job, fault: lf.Fault, place: Place) -> Evidence:
    """What the kernel says of a fault in force.

    Raises:
        CellError: that it is not there.
    """
    host, rail = place
    node = job.lab.nodes[host]
    link = read_links(node.ns)[f"rail{rail}"]
    match fault:
        case PacketFault():
            if not link.carrier:
                raise CellError(f"{_name(place)} lost its carrier")
            return _packets(job, fault)
        case lf.Carrier():
            if link.carrier or not link.up:
                raise CellError(f"{_name(place)} has a carrier, or is down: {link}")
            return {"carrier_downs": link.carrier_down_count}
        case lf.AdminDown():
            if link.up:
                raise CellError(f"{_name(place)} is up")
            return {"admin": "down"}
        case lf.AddressRemoved():
            left = node.run(["ip", "-o", "addr", "show", "dev", f"rail{rail}"]).stdout
            if node.address(rail) in left or node.address(rail, 6) in left or not link.carrier:
                raise CellError(f"{_name(place)} still has its address, or no carrier: {left}")
            return {"addresses": 0}
    raise CellError(f"nothing is known of {fault.kind}")


def _resets(job: Job, host: int) -> int:
    """Connections of a host that were reset so far (TCP's EstabResets, RFC 4022)."""
    lines = job.lab.nodes[host].run(["cat", "/proc/net/snmp"]).stdout.splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(values[names.index("EstabResets")])


# Strikes


@contextmanager
def _in_force(job: Job, made: Sequence[lf.Fault]) -> Iterator[int]:
    """All of them, begun and ended at one moment: yields when it was (CLOCK_MONOTONIC)."""
    with ExitStack() as stack:
        for fault in made:
            job.lab.arm(fault)
            stack.callback(job.lab.disarm, fault)
        since = time.monotonic_ns()
        for fault in made:
            fault.start()
        yield since
        for fault in made:
            fault.end()


def hold(job: Job, made: list[tuple[lf.Fault, Place]], *, seconds: float = HELD_S) -> Evidence:
    """All of these faults at once; the job has to go on under them."""
    told: Evidence = {"struck": [_name(place) for _, place in made]}
    with _in_force(job, [fault for fault, _ in made]) as since:
        told["progress_s"] = round(job.progress(), 3)
        for fault, place in made:
            told |= _proof(job, fault, place)
        time.sleep(max(0.0, seconds - (time.monotonic_ns() - since) / 1e9))
        told["progress_again_s"] = round(job.progress(), 3)
    told |= job.given_up(since)
    return told | _afterwards(job, [place for _, place in made])


def _afterwards(job: Job, places: list[Place]) -> Evidence:
    carried = job.carry_again(sorted(set(places)))
    return {"carries_again_s": round(carried, 3), "after_s": round(job.progress(), 3)}


def _one(make: Callable[[str], lf.Fault]) -> Callable[[Job, int], Evidence]:
    """A fault of one rail."""
    return _several(make, 1)


def _several(make: Callable[[str], lf.Fault], count: int) -> Callable[[Job, int], Evidence]:
    """The same fault on several rails of one host."""

    def strike(job: Job, host: int) -> Evidence:
        places = [(host, rail) for rail in job.flowing(host, count)]
        return hold(job, [(make(_name(place)), place) for place in places])

    return strike


def _crossed(job: Job, host: int) -> Evidence:
    """Half of the rails here, the other half there: no pair of like rails is left."""
    rails = job.lab.topology.rails
    other = (host + 1) % len(job.ranks)
    job.flowing(host, rails)
    places = [(host if rail < rails // 2 else other, rail) for rail in range(rails)]
    return hold(job, [(lf.Carrier(_name(place)), place) for place in places])


def _loss_everywhere(job: Job, host: int) -> Evidence:
    """1 % on all rails of a host: there is no clean one to go to."""
    places = [(host, rail) for rail in job.flowing(host, job.lab.topology.rails)]
    return hold(job, [(lf.Loss(_name(place), 1.0), place) for place in places])


def _reset_storm(job: Job, host: int) -> Evidence:
    before = _resets(job, host)
    told = _one(lf.ResetStorm)(job, host)
    told["connections_reset"] = _resets(job, host) - before
    if not told["connections_reset"]:
        raise CellError(f"no connection of h{host} was reset")
    return told


def _flap(period_ms: float, count: int) -> Callable[[Job, int], Evidence]:
    def strike(job: Job, host: int) -> Evidence:
        [rail] = job.flowing(host, 1)
        node = job.lab.nodes[host]
        before = node.carrier_down_count(rail)
        since = time.monotonic_ns()
        flap = lf.Flap(f"h{host}:rail{rail}", period_ms, count)
        told: Evidence = {"struck": [f"h{host}:rail{rail}"]}
        with job.lab.inject(flap):
            told["progress_s"] = round(job.progress(), 3)
            job.wait(lambda: not flap.running, "the end of the flap")
        told["carrier_downs"] = node.carrier_down_count(rail) - before
        if told["carrier_downs"] != count:
            raise CellError(f"{told['carrier_downs']} carrier losses, not {count}")
        return told | job.given_up(since) | _afterwards(job, [(host, rail)])

    return strike


def _all_rails(job: Job, host: int) -> Evidence:
    rails = job.lab.topology.rails
    places = [(host, rail) for rail in job.flowing(host, rails)]
    made = [lf.Carrier(_name(place)) for place in places]
    with _in_force(job, made) as since:
        job.comes_to_rest(DARK_S - 0.5)
        told: Evidence = {"struck": [f"h{host}"]}
        for fault, place in zip(made, places, strict=True):
            told |= _proof(job, fault, place)
        job.check_still(DARK_S - 0.5)
        job.check_sound()
    told["resumed_s"] = round(job.progress(), 3)
    return told | job.given_up(since) | _afterwards(job, places)


def _stopped_peer(job: Job, host: int) -> Evidence:
    job.flowing(host, 1)
    process = job.ranks[host].process
    process.send_signal(signal.SIGSTOP)
    try:
        job.comes_to_rest(STOPPED_S, 2.0)  # 64 MB are verified, under TSan too
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state != "T":
            raise CellError(f"rank {host} is in state {state}, not stopped")
        job.check_still(STOPPED_S - 0.5)
        job.check_sound()
    finally:
        process.send_signal(signal.SIGCONT)
    return {"struck": [f"rank {host}"], "state": state, "resumed_s": round(job.progress(), 3)}


FAULT_ACTIONS: dict[Fault, Callable[[Job, int], Evidence]] = {
    Fault.CARRIER: _one(lf.Carrier),
    Fault.ADMIN: _one(lf.AdminDown),
    Fault.ADDRESS: _one(lf.AddressRemoved),
    Fault.BLACKHOLE_TX: _one(lambda where: lf.BlackHole(where, "tx")),
    Fault.BLACKHOLE_RX: _one(lambda where: lf.BlackHole(where, "rx")),
    Fault.BLACKHOLE_BOTH: _one(lf.BlackHole),
    Fault.LOSS_1: _loss_everywhere,
    Fault.LOSS_20: _one(lambda where: lf.Loss(where, 20.0)),
    Fault.RESET_STORM: _reset_storm,
    Fault.FLAP_20MS: _flap(20, 50),
    Fault.FLAP_200MS: _flap(200, 8),
    Fault.FLAP_2S: _flap(2000, 2),
    Fault.TWO_RAILS: _several(lf.Carrier, 2),
    Fault.THREE_RAILS: _several(lf.Carrier, 3),
    Fault.CROSSED: _crossed,
    Fault.ALL_RAILS: _all_rails,
    Fault.STOPPED_PEER: _stopped_peer,
}
"""Strikes of a job under way: called with the job and the host to strike."""
