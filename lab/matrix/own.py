"""Cells that begin or end a job of their own: connect, close, grouped receives, a rebooted peer."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from lab.cluster import Cluster
from lab.faults import catalog as lf
from lab.faults.truth import Row
from lab.matrix.cells import PATTERNS, Cell, Fault
from lab.matrix.fault_actions import Evidence, hold
from lab.matrix.job import PATIENCE_S, CellError, Job

CONNECT_AFTER_BYTES = (0, 150, 400, 1000)
"""Before anything; when the address is resolved; in the handshake; when hellos are exchanged."""
CLOSE_AT_S = (-0.1, 0.0, 0.003)
"""Before the ranks close, with them, and a moment after."""
LINGER_S = (0.3, 1.2, 4.8)
"""Between a job's last word and its close: the next when the harness came too late to strike."""
ERROR_WITHIN_S = 1.0
"""The promise of docs/design/transport.md; `LATE` is what a loaded machine may add."""
LATE = 4.0
REBOOT_S = {"p2p": 0.0, "ring": 0.5, "alltoall": 2.0}
"""How long the peer is dark: the shortest leaves connections that nobody has given up."""


def _marks(job: Job, kind: str, *, ends: bool = False) -> list[Row]:
    """The row of that type of each rank; waits for them. ``ends`` is that of `Job.check_sound`."""
    found: list[Row] = []

    def there() -> bool:
        found[:] = [r for rank in job.ranks for r in rank.tail.marks if r["type"] == kind]
        return len(found) == len(job.ranks)

    job.wait(there, f"a row '{kind}' of every rank", ends=ends)
    return found


def _connect(lab: Cluster, cell: Cell, host: int) -> Evidence:
    """A rail goes dark at several points of connecting; and once all of them, until a while after.

    The rule counts bytes, so that it strikes at the same point however fast the machine is.
    """
    told: Evidence = {"struck": []}
    rail = host % lab.topology.rails
    for after in CONNECT_AFTER_BYTES:
        fault = lf.BlackHole(f"h{host}:rail{rail}", after_bytes=after)
        with ExitStack() as stack:
            stack.enter_context(lab.inject(fault))
            job = Job(lab, cell)
            stack.callback(job.kill)
            _marks(job, "connected")
            struck = sum(fault.packets().values())
            if not struck and after <= CONNECT_AFTER_BYTES[1]:
                raise CellError(f"nothing was dropped before all were connected, after {after}")
            job.wait_moving()
            told[f"dropped_connecting_{after}"] = struck
            fault.end()
            if after in CONNECT_AFTER_BYTES[:1]:
                told["joins_s"] = round(job.carry_again([(host, rail)]), 3)
            told |= job.finish()
    return told | _connect_in_the_dark(lab, cell, host)


def _connect_in_the_dark(lab: Cluster, cell: Cell, host: int) -> Evidence:
    fault = lf.BlackHole(f"h{host}")
    with ExitStack() as stack:
        stack.enter_context(lab.inject(fault))
        job = Job(lab, cell)
        stack.callback(job.kill)
        time.sleep(1.5)
        job.check_sound()
        # The others may be: a sender is handed out before its peer has answered.
        if any(row["type"] == "connected" for row in job.ranks[host].tail.marks):
            raise CellError("a rank has accepted connections in the dark")
        if any(iterations for _, iterations in job.done()):
            raise CellError("a rank has done an iteration without the dark one")
        dropped = fault.packets()
        if not all(dropped.values()):
            raise CellError(f"h{host}: nothing tried to connect: {dropped}")
        fault.end()
        seconds = job.wait(lambda: all(i > 0 for _, i in job.done()), "a first iteration")
        job.finish()
    return {"dark_dropped": sum(dropped.values()), "light_to_first_s": round(seconds, 3)}


def _close(lab: Cluster, cell: Cell, host: int) -> Evidence:
    """A rail, and another time all rails, go dark around the moment of closing: all ranks end."""
    rail = host % lab.topology.rails
    told: Evidence = {"struck": []}
    for target in (f"h{host}:rail{rail}", f"h{host}"):
        for at in CLOSE_AT_S if target == f"h{host}" else CLOSE_AT_S[:1]:
            key = f"{target}{at * 1000:+.0f}ms"
            for linger_s in LINGER_S:
                if struck := _close_once(lab, cell, lf.BlackHole(target), at, linger_s):
                    break
            else:
                raise CellError(f"{key}: the machine is too slow to strike at the close")
            told |= {f"{what}_{key}": value for what, value in struck.items()}
            if not struck["dropped"] and at < 0:
                raise CellError(f"{key}: nothing of the close was dropped")
    return told


def _close_once(
    lab: Cluster, cell: Cell, fault: lf.BlackHole, at: float, linger_s: float
) -> Evidence | None:
    """None: the moment was over before the fault was in force; the ranks ended well, though."""
    job = Job(lab, cell, "--iters", "3", "--linger", str(linger_s))
    with ExitStack() as stack:
        stack.callback(job.kill)
        closing = min(row["t_ns"] for row in _marks(job, "closing", ends=True)) / 1e9 + linger_s
        lab.arm(fault)
        stack.callback(lab.disarm, fault)
        late = time.monotonic() > closing + at
        time.sleep(max(0.0, closing + at - time.monotonic()))
        began = time.monotonic()
        fault.start()
        late = late or (at < 0 and time.monotonic() > closing)
        job.ended()
        ended = round(time.monotonic() - began, 3)
        return None if late else {"end_s": ended, "dropped": sum(fault.packets().values())}


def _grouped(lab: Cluster, cell: Cell, host: int) -> Evidence:
    """A black hole while grouped receives are open."""
    group = 2 if cell.size == "64MB" else 8
    slices = ("--slice", "512K" if cell.size == "64MB" else "1K")
    job = Job(lab, cell, "--group", str(group), "--in-flight", "16", *slices)
    try:
        job.wait_moving()
        [rail] = job.flowing(host, 1)
        told = hold(job, [(lf.BlackHole(f"h{host}:rail{rail}"), (host, rail))])
        return {"group": group} | told | job.finish()
    finally:
        job.kill()


def _rebooted_peer(lab: Cluster, cell: Cell, host: int) -> Evidence:
    """A host goes dark, its process and all its sockets go unheard, and its addresses come back.

    What survivors send then is answered with RST: one clear error each, soon.
    """
    job = Job(lab, cell)
    node = lab.nodes[host]
    fault = lf.BlackHole(f"h{host}")
    try:
        job.wait_moving()
        job.flowing(host, lab.topology.rails if cell.size != "8B" else 1)
        with lab.inject(fault):
            victim = job.ranks[host].process
            victim.kill()
            victim.wait()
            node.run(["ss", "-K", "-t", "state", "all"], check=False)  # orphans that would say FIN
            left = node.run(["ss", "-Htn", "state", "established"]).stdout
            if left:
                raise CellError(f"h{host} still has connections: {left}")
            time.sleep(REBOOT_S[cell.pattern])
            dropped = fault.packets()
            half_open = _established_to(lab, host)
        light = time.monotonic_ns()
        if not sum(dropped.values()):
            raise CellError(f"h{host} said nothing, and nobody spoke to it")
        took = _one_error_each(job, host, light)
    finally:
        job.kill()
    return {
        "struck": [f"h{host}"],
        "dropped": sum(dropped.values()),
        "half_open": half_open,
        "errors_after_s": took,
    }


def _established_to(lab: Cluster, host: int) -> int:
    """Connections that survivors still hold to that host."""
    addresses = [lab.nodes[host].address(rail) for rail in range(lab.topology.rails)]
    lines = [
        line
        for node in lab.nodes
        if node.index != host
        for line in node.run(["ss", "-Htn", "state", "established"]).stdout.splitlines()
    ]
    return sum(any(f"{address}:" in line for address in addresses) for line in lines)


def _one_error_each(job: Job, host: int, since_ns: int) -> list[float]:
    """Every survivor ends with status 1 and one error; when each came, in seconds."""
    survivors = [rank for rank in job.ranks if rank.rank != host]
    deadline = time.monotonic() + PATIENCE_S
    took = []
    for rank in survivors:
        while rank.process.poll() is None:
            if time.monotonic() > deadline:
                raise CellError(f"rank {rank.rank} hangs: its peer is gone; {job.state()}")
            time.sleep(0.01)
        rank.tail.read()
        if rank.process.returncode != 1 or len(rank.tail.errors) != 1 or rank.tail.corrupt_bytes:
            raise CellError(
                f"rank {rank.rank}: status {rank.process.returncode}, "
                f"{rank.tail.errors}, {rank.last_words()}"
            )
        took.append(round((rank.tail.errors[0]["t_ns"] - since_ns) / 1e9, 3))
    if max(took) > ERROR_WITHIN_S * LATE:
        raise CellError(
            f"errors came {took} s after the host was back, not within {ERROR_WITHIN_S}"
        )
    return took


OWN: dict[Fault, Callable[[Cluster, Cell, int], Evidence]] = {
    Fault.CONNECT: _connect,
    Fault.CLOSE: _close,
    Fault.GROUPED: _grouped,
    Fault.REBOOTED_PEER: _rebooted_peer,
}
"""Called with the lab, the cell and the host to strike."""
assert set(REBOOT_S) == set(PATTERNS)
