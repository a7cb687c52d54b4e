"""Hosts frozen, of a job over the lab's hosts.

Five network namespaces with real probers, daemons, a broker and a fabric-compute. A frozen host
sends no packet and closes no connection: it is lost by the votes of its peers' probers and the
job's agents, and by a fence that they acknowledge, not by a time-out of a collective.
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median

from bench.migrate import takeovers
from bench.migrate.jobs import LOOPS, RANKS, Job, arguments, run_job, standalone
from bench.migrate.kills import Measured, measure
from bench.migrate.takeovers import Fault
from bench.report import Row
from bench.training.trace import Control, read_page
from lab.cluster import Cluster, wait_until
from lab.faults.catalog import NodeFreeze
from lab.node import Node
from lab.services.management import Management, TrainingJob
from lab.topology import Topology

WHERE = "4 hosts and a spare, 52 MB of state, gloo, two cores for everything"
_REVIVE_S = 120.0
_FROZEN_S = 2.5
_AWAY_S = 1.0, 12.0
_TAKEOVER_S = 15.0


class LabJob(Job):
    """A job over the lab's hosts. Its launcher is the fabric-run of h0, which nobody harms."""

    def __init__(
        self,
        directory: Path,
        cluster: Cluster,
        management: Management,
        steps: int,
        env: Mapping[str, str],
        hashed: Sequence[int] = (),
        spares: int = 1,
    ) -> None:
        self.cluster, self.management = cluster, management
        # fmt: off
        self.training = TrainingJob(
            cluster, LOOPS / "protected.py", arguments(directory, steps, hashed),
            nodes=RANKS, spares=spares, options=["--standby", "0"], env=env,
        )
        # fmt: on
        self.revivals: list[threading.Thread] = []
        super().__init__(directory, self.training.run_of("h0"))

    def log(self) -> str:
        """What all hosts' fabric-runs wrote so far."""
        return "\n".join(self.training.log(node).read_text() for node in self.training.hosts)

    def ranks(self) -> dict[int, int]:
        """Pid of each rank that may be harmed."""
        spared = set(self.training.hosts[0].pids())
        return {rank: pid for rank, pid in super().ranks().items() if pid not in spared}

    def node_of(self, pid: int) -> Node:
        """The host on which a process runs."""
        return next(node for node in self.training.hosts if pid in node.pids())


@contextmanager
def lab_job(
    *,
    steps: int,
    env: Mapping[str, str],
    kind: type[LabJob] = LabJob,
    hashed: Sequence[int] = (),
    spares: int = 1,
    policy: Mapping[str, float] | None = None,
) -> Iterator[LabJob]:
    """Start lab and job, with ``env`` besides; all of it is removed at the end.

    ``hashed``: as of `jobs.standalone`. ``policy``: limits of fabric-compute that are not the
    lab's.
    """
    topology = Topology(
        name=f"bench-{os.getpid()}", hosts=RANKS + spares, rails=2, rate_bps=1_000_000_000,
        management=True,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-migrate-") as name:
        directory = Path(name)
        Control(directory)
        with Cluster(topology=topology) as cluster:
            management = Management(cluster)
            management.start_broker()
            management.start_compute(policy=policy or {})
            cluster.start_daemons(mode="migrate", broker=management.broker_table)
            job = kind(directory, cluster, management, steps, env, hashed, spares)
            yield job
            for thread in job.revivals:
                thread.join()


def start(
    *, steps: int, spares: int, hashed: Sequence[int] = (), env: Mapping[str, str] | None = None
) -> AbstractContextManager[Job]:
    """The disturbed job on the lab's hosts; the undisturbed one, without spares, on this one."""
    if spares:
        return lab_job(steps=steps, env=env or {})
    return run_job(standalone(steps, spares=0, hashed=hashed))


def freeze(job: Job, pid: int, _random: random.Random, *, frozen_s: float = _FROZEN_S) -> Fault:
    """Stop all processes of the host; they go on later, when the rank is another's."""
    assert isinstance(job, LabJob)
    page = read_page(job.directory, pid)
    assert page is not None
    node = job.node_of(pid)
    frozen = NodeFreeze(node.name)
    job.cluster.arm(frozen)
    at_ns = time.monotonic_ns()
    frozen.start()

    def revive() -> None:
        time.sleep(frozen_s)
        job.cluster.disarm(frozen)
        _restart(job, node)

    job.revivals.append(threading.Thread(target=revive))
    job.revivals[-1].start()
    return Fault(at_ns, page.rank, page.phase)


def _restart(job: LabJob, node: Node) -> None:
    """Once the host's fenced fabric-run has ended, start another one, as a spare."""
    wait_until(
        lambda: node.name not in job.training.running, _REVIVE_S, f"{node.name} stops its ranks"
    )
    job.training.start_on(node)


def freeze_without_broker(job: Job, pid: int, randoms: random.Random) -> Fault:
    """Stop the host and kill the broker; the fault is when a broker is there again."""
    assert isinstance(job, LabJob)
    broker = job.management.broker
    assert broker is not None
    away_s = randoms.uniform(*_AWAY_S)
    broker.stop(grace_s=0)
    fault = freeze(job, pid, randoms, frozen_s=away_s + _TAKEOVER_S)
    time.sleep(away_s)
    broker.start()
    return Fault(time.monotonic_ns(), fault.rank, fault.phase)


def frozen_without_broker(*, quick: bool) -> list[Row]:
    """A host and the broker are lost at once; nobody can be fenced before a broker is there."""
    got = measure(freeze_without_broker, 2 if quick else 10, seed=31, start=start)
    away = "the broker was away for {:.0f} to {:.0f} s".format(*_AWAY_S)
    what = "host and broker lost at once, a broker is there again → next commit on all ranks"
    return _rows(got, what, "host and broker lost", 5000, away)


def frozen_hosts(*, quick: bool) -> list[Row]:
    """A host stops with all of its processes; its kernel goes on answering."""
    got = measure(freeze, 3 if quick else 20, seed=29, start=start)
    woke = "each host woke again and changed nothing"
    return _rows(got, "frozen host → next commit on all ranks", "frozen hosts", 1200, woke)


def _rows(got: Measured, what: str, name: str, asked_ms: float, note: str) -> list[Row]:
    """Of hosts that were lost; ``note``: what else is to be known of the takeovers."""
    pauses, count = got.pauses_ms(), len(got.found)
    same = takeovers.exact(got.found, got.events, got.wrong)
    chain = f"a step takes {got.play.step_s * 1e3:.0f} ms"
    return [
        Row(f"{what}, median", asked_ms, median(pauses), "ms", note=f"{WHERE}; {chain}"),
        Row(f"{what}, the latest of {count}", asked_ms, max(pauses), "ms",
            samples={"each": pauses}),
        Row(
            f"{name}: steps lost", 0, sum(one.lost_steps for one in got.found), "",
            better="equal", note=f"batches dropped or doubled: {got.dropped + got.doubled}",
        ),
        Row(
            f"{name}: takeovers with the state of an undisturbed job, all ranks", count, same,
            "", better="equal", note=note,
        ),
    ]  # fmt: skip
