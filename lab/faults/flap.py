"""The flap: a port's carrier goes down and up periodically."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path

from lab.faults import flapper
from lab.faults.base import Fault
from lab.lifecycle.registry import LabError
from lab.topology import RailTarget, Target, TopologyError

MIN_PERIOD_MS = 1.0


class Flap(Fault):
    """``count`` times: carrier down for ``duty`` of ``period_ms``, then up for the rest.

    The ground truth has a row of phase ``start``, one ``down`` and one ``up`` for every cycle with
    the actual time (``n`` counts from 1, ``late_ns`` is the jitter), and one ``end``.
    """

    kind = "flap"
    targets = (RailTarget,)

    def __init__(self, target: str, period_ms: float, count: int, duty: float = 0.5) -> None:
        super().__init__(target)
        if period_ms < MIN_PERIOD_MS:
            raise TopologyError(f"period = {period_ms} ms: at least {MIN_PERIOD_MS} ms")
        if not 0 < duty < 1:
            raise TopologyError(f"duty = {duty}: the share of a period spent down, between 0 and 1")
        if count < 1:
            raise TopologyError(f"count = {count}: at least 1")
        self.period_ms, self.count, self.duty = period_ms, count, duty

    def parameters(self) -> dict[str, object]:
        """Period, duty and count as asked."""
        return {"period_ms": self.period_ms, "duty": self.duty, "count": self.count}

    def _prepare(self, target: Target) -> None:
        assert isinstance(target, RailTarget)
        port = self.site.topology.leaf_port(target.host, target.rail)
        period_ns = round(self.period_ms * 1e6)
        plan = flapper.Plan(
            ns=port.ns,
            ifname=port.ifname,
            row=port.number,
            holds=str(self.site.dir.holds),
            truth=str(self.site.dir.truth),
            target=self.target_text,
            id=self.id,
            period_ns=period_ns,
            down_ns=round(period_ns * self.duty),
            count=self.count,
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lab.faults.flapper"],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(dataclasses.asdict(plan)) + "\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "ready\n":
            raise LabError(f"the flapper did not start (exit {self._process.wait()})")

    def _start(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    @property
    def running(self) -> bool:
        """Whether cycles are left to do."""
        return self._process.poll() is None

    def wait(self) -> None:
        """Until the last cycle is over.

        Raises:
            LabError: the flapper failed.
        """
        if self._process.wait() not in {0, -signal.SIGTERM}:
            raise LabError(f"the flapper failed (exit {self._process.returncode})")

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self.wait()

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
