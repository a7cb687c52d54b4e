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
from bench.migrate.jobs import LOOPS, RANKS, Job, run_job, standalone
from bench.migrate.kills import Measured, measure
from bench.migrate.takeovers import Fault
from bench.report import Row
from bench.training.trace import Control, read_page
from lab.cluster import Cluster, wait_until
from lab.faults.catalog import NodeFreeze
from lab.node import Node
from lab.services.management import Management, TrainingJob
from lab.topology import Topology

HOSTS = RANKS + 1
WHERE = "4 hosts and a spare, 52 MB of state, gloo, two cores for everything"
_REVIVE_S = 120.0
_FROZEN_S = 2.5


class LabJob(Job):
    """A job over the lab's hosts. Its launcher is the fabric-run of h0, which nobody harms."""

    def __init__(
        self,
        directory: Path,
        cluster: Cluster,
        management: Management,
        steps: int,
        env: Mapping[str, str],
    ) -> None:
        self.cluster, self.management = cluster, management
        # fmt: off
        self.training = TrainingJob(
            cluster, LOOPS / "protected.py", [str(directory), str(steps)],
            nodes=RANKS, spares=1, options=["--standby", "0"], env=env,
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
def lab_job(*, steps: int, env: Mapping[str, str]) -> Iterator[Job]:
    """Start lab and job, with ``env`` besides; all of it is removed at the end."""
    topology = Topology(
        name=f"bench-{os.getpid()}", hosts=HOSTS, rails=2, rate_bps=1_000_000_000, management=True
    )
    with tempfile.TemporaryDirectory(prefix="bench-migrate-") as name:
        directory = Path(name)
        Control(directory)
        with Cluster(topology=topology) as cluster:
            management = Management(cluster)
            management.start_broker()
            management.start_compute()
            cluster.start_daemons(mode="migrate", broker=management.broker_table)
            job = LabJob(directory, cluster, management, steps, env)
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


def freeze(job: Job, pid: int, _random: random.Random) -> Fault:
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
        time.sleep(_FROZEN_S)
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


def frozen_hosts(*, quick: bool) -> list[Row]:
    """A host stops with all of its processes; its kernel goes on answering."""
    count = 3 if quick else 20
    got = measure(freeze, count, seed=29, start=start)
    pauses = got.pauses_ms()
    same = takeovers.exact(got.found, got.events, got.wrong)
    what = "frozen host → next commit on all ranks"
    return [
        Row(f"{what}, median", 1200, median(pauses), "ms", note=f"{WHERE}; {_chain(got)}"),
        Row(f"{what}, the latest of {count}", 1200, max(pauses), "ms"),
        Row(
            "frozen hosts: steps lost", 0, sum(one.lost_steps for one in got.found), "",
            better="equal", note=f"batches dropped or doubled: {got.dropped + got.doubled}",
        ),
        Row(
            "frozen hosts: takeovers with the state of an undisturbed job, all ranks", count, same,
            "", better="equal", note="each host woke again and changed nothing",
        ),
    ]  # fmt: skip


def _chain(got: Measured) -> str:
    return f"a step takes {got.play.step_s * 1e3:.0f} ms"
