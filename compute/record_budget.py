"""Which records of jobs the ledger keeps: no host fills it with what its jobs come to. Pure.

A record is charged to one host of its job, the one that has most left: so a job of many hosts is
recorded while any of them has not flooded. Fences are kept whatever there is. On a full disk what
is left is for jobs that a takeover can help: those of more than one host.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence

from compute.board import JobBoard
from compute.decide.effects import Effect, JobState, Record
from compute.event_budget import EventBudget

ALWAYS = frozenset({"fence"})
MOST_PAYERS = 64
"""Hosts of one job that are asked."""


class RecordBudget:
    """A budget of its own for each host, beside that of its events.

    Attributes:
        hosts: what each has spent, and what was left out.
    """

    def __init__(self) -> None:
        # A record of the core may be long: it names the ranks of a job.
        self.hosts = EventBudget(largest=math.inf)

    def kept(
        self, effects: Sequence[Effect], board: JobBoard, now: float, *, full: bool
    ) -> list[Effect]:
        """``effects`` without the records that are left out.

        Args:
            effects: of one decision.
            board: knows the hosts of jobs whose states are not among ``effects``.
            now: monotonic seconds.
            full: the disk has room for the most necessary only.
        """
        hosts = {
            one.job: one.state.hosts for one in effects if isinstance(one, JobState) and one.state
        }

        def hosts_of(record: Record) -> Collection[str]:
            job, host = str(record.fields.get("job", "")), record.fields.get("host")
            known = hosts.get(job) or board.hosts_of(job)
            return known or ([host] if isinstance(host, str) else [])

        return [
            one
            for one in effects
            if not isinstance(one, Record) or self._is_kept(one, hosts_of(one), now, full=full)
        ]

    def _is_kept(self, record: Record, hosts: Collection[str], now: float, *, full: bool) -> bool:
        if record.kind in ALWAYS:
            return True
        payers = list(hosts)[:MOST_PAYERS] or [""]
        payer = min(payers, key=lambda host: self.hosts.owed(host, now))
        if full and len(payers) == 1:
            self.hosts.leave_out(payer)
            return False
        size = len(record.kind) + len(json.dumps(record.fields, default=str))
        return self.hosts.spend(payer, size, now)
