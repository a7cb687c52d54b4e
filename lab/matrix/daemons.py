"""Cells that strike what the plugin takes hints from: fabricd, its steer page, the wall clock.

None of it may take a path from a job: hints that are missing, wrong or old count as none.
"""

from __future__ import annotations

import contextlib
import random
import signal
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fabricd.steer.page import PAGE_SIZE, STALE_NS, PageError, decode
from lab.clocks.preload import preload
from lab.cluster import Cluster, wait_until
from lab.matrix.cells import Fault
from lab.matrix.fault_actions import Evidence
from lab.matrix.job import PATIENCE_S, CellError, Job
from lab.matrix.stall_watchdog import StallWatchdog
from lab.node import Node
from telemetry.statspage import PathDownReason, StatsEvent, StatsEventKind

Strike = Callable[["Daemons", Job, int], Evidence]
STALL_S = 0.02
"""A third of what the plugin waits for an acknowledgement (docs/design/transport.md)."""
STRIKES_MOST = 4
CAUSE_S = 10.0
"""How long the cause of a lost path is waited for."""
TOLD = (PathDownReason.PEER_TOLD, PathDownReason.SOCKET_ERROR)
"""What the end of a path notes that the other end gave up: it was told, or its socket ended."""

_SEQUENCE = struct.Struct("<Q")
_SEQUENCE_AT, _HEADER_SIZE = 8, 128
"""nccl_plugin/pages/steer_page.h"""
JUMPS_S = (3600, -86_400)
"""Forward, as after a battery's end; back, as by a wrong time server. From the true time."""


class ClockShift:
    """CLOCK_REALTIME of the processes started with `env`, shifted at will (lab/native)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(16))

    def env(self) -> Mapping[str, str]:
        """What a process has to be started with.

        Raises:
            LabError: the library is not built.
        """
        return {**preload("clockshift"), "FABRIC_CLOCKSHIFT": str(self.path)}

    def shift(self, seconds: int) -> None:
        """From now on the clock is so far from the true time."""
        with self.path.open("r+b") as file:
            file.write(struct.pack("=q", seconds * 10**9))

    @property
    def shifted_reads(self) -> int:
        """How often a process was told a shifted time."""
        return int(struct.unpack("=qQ", self.path.read_bytes()[:16])[1])


class Daemons:
    """Prober and fabricd of every host, and the clocks of fabricd and of the jobs."""

    def __init__(self, lab: Cluster) -> None:
        self.lab = lab
        self.daemon_clock = ClockShift(lab.dir.root / "clock-daemons")
        self.job_clock = ClockShift(lab.dir.root / "clock-jobs")
        lab.start_daemons(hold={"hold_down_s": 0.5}, env=self.daemon_clock.env())
        for node in lab.nodes:
            wait_until(lambda n=node: _valid(n), PATIENCE_S, f"{node.name}'s steer page")  # type: ignore[misc]

    def stop(self) -> None:
        """Stop them all."""
        for node in self.lab.nodes:
            node.stop_services()


def _valid(node: Node) -> bool:
    try:
        return bool(decode((node.run_dir / "steer").read_bytes()).rails)
    except (OSError, PageError):
        return False


def _follows(job: Job, host: int, *, present: bool) -> Callable[[], bool]:
    """Whether the rank reads a valid and fresh steer page (or knows that there is none)."""

    def check() -> bool:
        page = job.ranks[host].page()
        return page is not None and page.steer_present == present

    return check


def _rejected(job: Job, host: int) -> int:
    page = job.ranks[host].page()
    return 0 if page is None else page.steer_rejected


def _reason(detail: int) -> str:
    return PathDownReason(detail).name if detail in set(PathDownReason) else f"reason {detail}"


class PathsLostError(CellError):
    """Paths were given up under a fault that takes none. ``lost``: as `_lost`."""

    def __init__(self, lost: list[tuple[int, StatsEvent]]) -> None:
        first = "; ".join(
            f"rank {rank} rail {e.local_rail}-{e.remote_rail}: {_reason(e.detail)} "
            f"{(e.time_ns - lost[0][1].time_ns) / 1e6:.1f} ms later"
            for rank, e in lost[:6]
        )
        super().__init__(f"{len(lost)} paths were given up: {first}")
        reasons = [event.detail for _, event in lost]
        self.by_silence = (
            reasons[0] == PathDownReason.NO_ACK and PathDownReason.STEER_PAGE not in reasons
        )
        """A peer was not heard first; no hint had a part in it."""


def _lost(job: Job, since_ns: int) -> list[tuple[int, StatsEvent]]:
    """(rank, event) of the paths given up since then, the first one first."""
    lost = [(r.rank, e) for r in job.ranks for e in r.since(StatsEventKind.PATH_DOWN, since_ns)]
    return sorted(lost, key=lambda entry: entry[1].time_ns)


def _undisturbed(job: Job, since_ns: int, seconds: float = CAUSE_S) -> None:
    """No path was given up since then.

    The two ends of a path publish its loss on their own pages, some time after it, and a page is
    not read while it is written. So the end that was told, in words or by the end of the
    connection, may be seen first: the other one's event, which has the cause, is waited for.

    Raises:
        PathsLostError: paths were given up.
    """
    if not _lost(job, since_ns):
        return
    with contextlib.suppress(TimeoutError):
        wait_until(
            lambda: _lost(job, since_ns)[0][1].detail not in TOLD,
            seconds, "the event of the end that gave a path up",
        )  # fmt: skip
    raise PathsLostError(_lost(job, since_ns))


def _on_a_machine_that_runs(strike: Strike) -> Strike:
    """A peer that is not heard for 60 ms may be one that was not run: strike again then.

    Only what a witness saw counts as that, and a few times at most.
    """

    def strikes(daemons: Daemons, job: Job, host: int) -> Evidence:
        for attempt in range(STRIKES_MOST):
            with StallWatchdog(rank.process.pid for rank in job.ranks) as watchdog:
                try:
                    return strike(daemons, job, host) | ({"again": attempt} if attempt else {})
                except PathsLostError as lost:
                    stalled = watchdog.longest_s >= STALL_S
                    if not (lost.by_silence and stalled) or attempt + 1 == STRIKES_MOST:
                        lost.add_note(
                            f"attempt {attempt + 1}; the test or a rank was kept from running for "
                            f"{watchdog.longest_s * 1e3:.0f} ms at most"
                        )
                        raise
            job.progress()
        raise AssertionError

    return strikes


def _killed(daemons: Daemons, job: Job, host: int) -> Evidence:
    """Every fabricd gets SIGKILL; each is started again, as systemd would."""
    job.wait(_follows(job, host, present=True), "the steer page followed")
    job.flowing(host, 1)
    since = time.monotonic_ns()
    services = [s for node in daemons.lab.nodes if (s := node.daemon) is not None]
    before = [service.kill(signal.SIGKILL) for service in services]
    told: Evidence = {"struck": [node.name for node in daemons.lab.nodes]}
    told["progress_s"] = round(job.progress(), 3)
    after = [s.wait_restarted(pid) for s, pid in zip(services, before, strict=True)]
    if any(-signal.SIGKILL not in service.exits for service in services):
        raise CellError(f"a daemon did not die: {[s.exits for s in services]}")
    told["daemons"] = [f"{a} -> {b}" for a, b in zip(before, after, strict=True)]
    for node in daemons.lab.nodes:
        job.wait(lambda n=node: _valid(n), f"{node.name}'s steer page again")  # type: ignore[misc]
    told["after_s"] = round(job.progress(), 3)
    job.wait(_follows(job, host, present=True), "the steer page followed again")
    _undisturbed(job, since)
    return told


def _damaged(damage: Callable[[bytes], bytes]) -> Strike:
    def strike(daemons: Daemons, job: Job, host: int) -> Evidence:
        """The page as a daemon gone mad would leave it, and no daemon to mend it for a while."""
        job.wait(_follows(job, host, present=True), "the steer page followed")
        service = daemons.lab.nodes[host].daemon
        assert service is not None
        service.restart = False
        service.kill(signal.SIGKILL)
        wait_until(lambda: not service.running, PATIENCE_S, "the daemon's end")
        page = daemons.lab.nodes[host].run_dir / "steer"
        whole = page.read_bytes()
        refused = _rejected(job, host)
        job.flowing(host, 1)
        since = time.monotonic_ns()
        page.write_bytes(damage(whole))
        told: Evidence = {"struck": [f"h{host}"]}
        told["noticed_s"] = round(job.wait(_follows(job, host, present=False), "it is refused"), 3)
        job.wait(lambda: _rejected(job, host) > refused, "the refusal counted")
        told["refused"] = _rejected(job, host) - refused
        told["progress_s"] = round(job.progress(), 3)
        service.restart = True
        service.start()
        back = job.wait(_follows(job, host, present=True), "a page of the new daemon followed")
        told |= {"back_s": round(back, 3), "after_s": round(job.progress(), 3)}
        _undisturbed(job, since)
        return told

    return strike


def _noise(whole: bytes) -> bytes:
    """A header that is good, fresh and says that the page has changed; behind it anything."""
    size = _SEQUENCE.size
    [number] = _SEQUENCE.unpack_from(whole, _SEQUENCE_AT)
    head = bytearray(whole[:_HEADER_SIZE])
    head[_SEQUENCE_AT : _SEQUENCE_AT + size] = _SEQUENCE.pack(number + 2)
    return bytes(head) + random.Random(7).randbytes(PAGE_SIZE - _HEADER_SIZE)


def _clock_jump(daemons: Daemons, job: Job, host: int) -> Evidence:
    """The wall clock of ranks and daemons jumps, forward and back."""
    job.wait(_follows(job, host, present=True), "the steer page followed")
    job.flowing(host, 1)
    since = time.monotonic_ns()
    pids = [node.daemon.pid for node in daemons.lab.nodes if node.daemon is not None]
    told: Evidence = {"struck": ["all clocks"], "jumps_s": list(JUMPS_S)}
    try:
        for number, jump in enumerate(JUMPS_S):
            read = daemons.daemon_clock.shifted_reads
            daemons.job_clock.shift(jump)
            daemons.daemon_clock.shift(jump)
            told[f"progress_{number}_s"] = round(job.progress(), 3)
            job.wait(
                lambda was=read: daemons.daemon_clock.shifted_reads > was,  # type: ignore[misc]
                "a daemon that reads the clock",
            )
            # Longer than an age at which a page counts as old.
            time.sleep(STALE_NS / 1e9 + 0.2)
            followed = job.wait(_follows(job, host, present=True), "the steer page still followed")
            told[f"followed_{number}_s"] = round(followed, 3)
        told["after_s"] = round(job.progress(), 3)
        _undisturbed(job, since)
        ended = job.finish()  # its last rows tell what time it took it to be
    finally:
        daemons.job_clock.shift(0)
        daemons.daemon_clock.shift(0)
    if [n.daemon.pid for n in daemons.lab.nodes if n.daemon is not None] != pids:
        raise CellError("a daemon ended when the clock jumped")
    for rank in job.ranks:
        rank.tail.read()
        times = {r["type"]: r["wall_ns"] - r["t_ns"] for r in rank.tail.marks if "wall_ns" in r}
        seen = round((times["closing"] - times["start"]) / 1e9)
        if seen != JUMPS_S[-1]:
            raise CellError(f"rank {rank.rank} saw its clock {seen} s off, not {JUMPS_S[-1]}")
    return told | ended | {"seen_by_ranks_s": JUMPS_S[-1]}


_STRIKES: dict[Fault, Strike] = {
    Fault.DAEMON_KILLED: _killed,
    Fault.PAGE_CORRUPT: _damaged(_noise),
    Fault.PAGE_TRUNCATED: _damaged(lambda whole: whole[:100]),
    Fault.CLOCK_JUMP: _clock_jump,
}
DAEMONS = {fault: _on_a_machine_that_runs(strike) for fault, strike in _STRIKES.items()}
"""Called with the daemons, the job under way and the host to strike."""
