"""RDMA writes over one reliable connection, to see what verbs report of a fault."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from lab.lifecycle.registry import LabError
from lab.topology import Topology
from lab.vm.machine import Vm
from lab.vm.wire import Job

_SCRIPT = (Path(__file__).parent / "guest" / "rc_writes.py").read_text()
_PATH = "/run/fabric-vm/rc_writes.py"
PYTHON = "/usr/bin/python3"
LOCAL_QP_OPERATION, FLUSHED, RETRIES_EXCEEDED = 2, 5, 12
"""Statuses of completions (enum ibv_wc_status)."""
READY_TO_SEND = 3
"""enum ibv_qp_state"""


class Guests(Protocol):
    """What RDMA writes need of a lab: `lab.vm.rdma.lab.GuestLab` has it."""

    topology: Topology

    @property
    def machines(self) -> list[Vm]: ...  # noqa: D102

    def popen(  # noqa: D102
        self, host: int, argv: Sequence[str], *, timeout: float = 300
    ) -> Job: ...

    def wait_listening(self, host: int, port: int, server: Job) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class SourceResult:
    """What the source of a connection saw. Times are its CLOCK_MONOTONIC in ns."""

    writes: int
    """Completed without an error."""
    status: int
    """Of the first completion with an error, or 0."""
    begin_ns: int
    end_ns: int
    longest_gap_ns: int
    """Between two completions, or from the last good one to the error."""


@dataclass(frozen=True, slots=True)
class WritesResult(SourceResult):
    """What both ends of a connection saw."""

    landed: int
    """Number of the last message in the target's memory."""
    target_state: int
    """State of the target's queue pair at the end (enum ibv_qp_state)."""


class RcWrites:
    """Source and target of one connection, started.

    Args:
        lab: where.
        source: host that writes.
        target: host that is written to.
        rail: of both.
        seconds: how long, unless there is an error.
        size: bytes of a message.
        timeout: the queue pair's, 4.096 µs × 2^timeout.
        retries: the queue pair's; soft-RoCE takes 7 for ever.
        port: for the exchange over the management network.
    """

    def __init__(
        self,
        lab: Guests,
        source: int,
        target: int,
        rail: int,
        *,
        seconds: float,
        size: int,
        timeout: int,
        retries: int,
        port: int,
    ) -> None:
        for vm in lab.machines:
            vm.write(_PATH, _SCRIPT)
        self._lab, self._source, device = lab, source, f"rxe{rail}"
        self._started = f"/run/fabric-vm/rc-writes-{port}"
        limit = 240 + seconds * 4
        self._serving = lab.popen(
            target, [PYTHON, _PATH, "target", device, str(port)], timeout=limit
        )
        lab.wait_listening(target, port, self._serving)
        server = lab.topology.management4(target)
        words = [server, seconds, size, timeout, retries, self._started]
        argv = [PYTHON, _PATH, "source", device, str(port), *(str(word) for word in words)]
        self._writing = lab.popen(source, argv, timeout=limit)

    def wait_started(self) -> None:
        """Until the first write is complete.

        Raises:
            LabError: the source has ended before.
        """
        wait = f"until [ -e {self._started} ]; do sleep 0.02; done"
        waiting = self._lab.popen(self._source, ["sh", "-c", wait])
        while waiting.running:
            if not self._writing.running:
                waiting.kill()
                raise LabError(f"the source has ended: {self._writing.wait()}")
            time.sleep(0.02)

    def source_result(self) -> SourceResult:
        """Until the source has ended; for a target that does not live as long.

        Raises:
            VmError: it failed; its output is in the text.
        """
        return SourceResult(**json.loads(self._writing.wait().check().out))

    def wait(self) -> WritesResult:
        """Until both have ended.

        Raises:
            VmError: one failed; its output is in the text.
        """
        try:
            source = self.source_result()
        except BaseException:
            self._serving.kill()
            raise
        served = json.loads(self._serving.wait().check().out)
        return WritesResult(**asdict(source), landed=served["landed"], target_state=served["state"])
