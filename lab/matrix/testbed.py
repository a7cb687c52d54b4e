"""The testbed on which the matrix runs: one lab, one job at a time, a record of each cell."""

from __future__ import annotations

import json
import time
from pathlib import Path

from lab.cluster import Cluster
from lab.matrix.cells import Cell, Fault, Stage
from lab.matrix.daemons import DAEMONS, Daemons
from lab.matrix.fault_actions import FAULT_ACTIONS, Evidence
from lab.matrix.job import Job, world_of
from lab.matrix.own import OWN

HOSTS, RAILS, RATE = 3, 4, "200mbit"


class FaultTestbed:
    """Cells that share a job (`Job.key`) find it running; another job is begun when they do not."""

    def __init__(self, lab: Cluster, record: Path) -> None:
        self.lab = lab
        self._record = record
        self._job: Job | None = None
        self._daemons: Daemons | None = None
        self._struck = 0

    def run(self, cell: Cell) -> Evidence:
        """Strike, and judge what comes of it.

        Raises:
            CellError: it is not what the matrix expects; the job is given up then.
        """
        began = time.monotonic()
        try:
            told = self._run(cell)
        except BaseException as error:
            self._write(cell, began, {"failed": str(error)[:500]})
            self.abandon()
            raise
        self._write(cell, began, told)
        return told

    def _run(self, cell: Cell) -> Evidence:
        host = self._struck % world_of(cell, self.lab.topology.hosts)
        self._struck += 1
        if cell.stage is not Stage.DAEMONS:
            self._stop_daemons()
        if cell.stage is Stage.OWN:
            self.finish()
            return OWN[cell.fault](self.lab, cell, host)
        if cell.stage is Stage.DAEMONS and self._daemons is None:
            self.finish()
            self._daemons = Daemons(self.lab)
        job = self._running(cell)
        if cell.stage is Stage.DAEMONS:
            assert self._daemons is not None
            told = DAEMONS[cell.fault](self._daemons, job, host)
            if cell.fault is Fault.CLOCK_JUMP:  # it has ended the job
                self._job = None
                return told
        else:
            told = FAULT_ACTIONS[cell.fault](job, host)
        job.check_sound()
        return told

    def _running(self, cell: Cell) -> Job:
        wanted = (cell.stage, cell.pattern, cell.size)
        if self._job is not None and self._job.key != wanted:
            self.finish()
        if self._job is None:
            clock = None if self._daemons is None else self._daemons.job_clock.env()
            self._job = Job(self.lab, cell, env=clock)
            self._job.wait_moving()
        return self._job

    def _stop_daemons(self) -> None:
        """Other cells are of the plugin alone: a daemon would damp the rails that they let flap."""
        daemons, self._daemons = self._daemons, None
        if daemons is not None:
            self.finish()
            daemons.stop()

    def finish(self) -> Evidence:
        """End the job under way, if any, in good order.

        Raises:
            CellError: it does not end so, or not clean.
        """
        job, self._job = self._job, None
        if job is None:
            return {}
        try:
            return job.finish()
        finally:
            job.kill()

    def abandon(self) -> None:
        """End the job under way at once: it is spoilt."""
        job, self._job = self._job, None
        if job is not None:
            job.kill()

    def _write(self, cell: Cell, began: float, told: Evidence) -> None:
        row = {"cell": str(cell), "seconds": round(time.monotonic() - began, 2)} | told
        with self._record.open("a") as file:
            file.write(json.dumps(row) + "\n")
