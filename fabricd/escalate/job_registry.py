"""Which fabric-runs are on this host, and what is to be published of their jobs. Pure.

A job has at most one fabric-run here. It counts as gone when its process has ended, which is
observed, not guessed: a lost connection alone says nothing while the process lives. Where the
process cannot be observed, the end of its connection counts.

A job's name belongs to the user who registered it, as long as that run may live. An incarnation
belongs to its user for ever: orders to it hold what opens the ports of its job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MOST_JOBS, MOST_OF_USER = 128, 16
"""Running jobs, of all users and of one."""
MOST_LIVES, MOST_USERS = 256, 16_384
"""Incarnations of one user that are remembered, the newest, and users."""
MOST_BYTES, MOST_BYTES_OF_USER, SURE_BYTES = 24 << 20, 8 << 20, 1 << 20
"""Memory of the documents of all users but root, of one user, and what every user has whatever
others take. A user has room for any one line. The document of a job of 2,000 hosts with 8 ranks
takes less than the last; most have some KiB."""
MOST_GONE = 64
"""Ended jobs that are remembered and published; beyond that the oldest is forgotten."""


class RefusedError(Exception):
    """A registration is refused. The text says why."""


@dataclass
class Run:
    """One life of a fabric-run.

    ``document`` is None until it sent one to *this* fabricd. ``connection`` is a number of the
    job server; None: not connected now.
    """

    job: str
    incarnation: str
    uid: int
    pid: int
    start: int = 0
    """Start time of the process (/proc/PID/stat), which tells two of one pid apart; 0: unknown."""
    connection: int | None = None
    observed: bool = False
    """Somebody waits for the end of its process."""
    gone: bool = False
    proven: bool = False
    """The end of its process was observed, so it cannot come back."""
    document: dict[str, Any] | None = None
    memory: int = 0
    """Bytes that its document takes here."""

    @property
    def present(self) -> bool:
        """Whether processes of this life may still run."""
        return not self.gone

    def state(self) -> dict[str, Any] | None:
        """The data of its ``HostJob``; None: what is retained at the broker stands."""
        if self.document is None and not self.gone:
            return None
        return {
            "job": self.job,
            "incarnation": self.incarnation,
            "uid": self.uid,
            "gone": self.gone,
            "document": self.document or {},
        }


class JobRegistry:
    """The runs by job, oldest first."""

    def __init__(self, user_of: Callable[[int], int] = lambda uid: uid) -> None:
        """Args: ``user_of``: uid → whose it is; one user may have thousands of them."""
        self.user_of = user_of
        self.runs: dict[str, Run] = {}
        self._lives: dict[int, dict[tuple[str, str], None]] = {}
        """User → jobs and incarnations that were his, both oldest first."""

    def of(self, connection: int) -> Run | None:
        """The run that is connected there."""
        return next((run for run in self.runs.values() if run.connection == connection), None)

    def register(self, job: str, incarnation: str, uid: int, pid: int, connection: int) -> Run:
        """A fabric-run says who it is; returns its run.

        The same life may come again, as after a lost connection; another life only when the one
        before is gone.

        Raises:
            RefusedError: another user's job or incarnation, another life that still runs, or too
                many jobs.
        """
        known = self.runs.get(job)
        if known is not None and known.uid != uid and known.present:
            raise RefusedError(f"job {job} belongs to uid {known.uid} on this host")
        life = job, incarnation
        if any(life in lives for user, lives in self._lives.items() if user != uid):
            raise RefusedError(f"incarnation {incarnation} of job {job} is another user's")
        if known is not None and (known.uid, known.incarnation) == (uid, incarnation):
            if known.proven:
                raise RefusedError(f"incarnation {incarnation} of job {job} has ended")
            if known.pid != pid:
                raise RefusedError(f"incarnation {incarnation} of job {job} is process {known.pid}")
            known.connection, known.gone = connection, False
            return known
        if known is not None and known.present:
            raise RefusedError(f"job {job} has a fabric-run on this host, process {known.pid}")
        running = Counter(self.user_of(run.uid) for run in self.runs.values() if run.present)
        own = running[self.user_of(uid)]
        if own >= MOST_OF_USER or running.total() >= MOST_JOBS:
            raise RefusedError(
                f"{own} jobs of uid {uid} and {running.total()} in all run here; allowed: "
                f"{MOST_OF_USER} and {MOST_JOBS}"
            )
        self.runs.pop(job, None)
        run = self.runs[job] = Run(job, incarnation, uid, pid, connection=connection)
        self._note_life(run)
        return run

    def _note_life(self, run: Run) -> None:
        lives, life = self._lives.pop(run.uid, {}), (run.job, run.incarnation)
        lives.pop(life, None)
        lives[life] = None
        if len(lives) > MOST_LIVES:
            del lives[next(iter(lives))]
        self._lives[run.uid] = lives
        if len(self._lives) > MOST_USERS:
            del self._lives[next(iter(self._lives))]

    def keep(self, run: Run, document: dict[str, Any], memory: int) -> bool:
        """Keep the newest document of a run; False: it is the one before.

        Raises:
            RefusedError: its user's documents would take more memory than they may, or all would.
        """
        if run.document == document:
            return False
        user = self.user_of(run.uid)
        taken: Counter[int] = Counter()
        for other in self.runs.values():
            if other is not run and other.memory:
                taken[self.user_of(other.uid)] += other.memory
        own, others = taken[user] + memory, taken.total() - taken[0] + memory
        full = user != 0 and own > SURE_BYTES and others > MOST_BYTES
        if full or own > MOST_BYTES_OF_USER:
            raise RefusedError(
                f"with this one the documents of the jobs of uid {run.uid} take {own >> 10} KiB of "
                f"memory here, and those of all users {others >> 10} KiB; allowed: "
                f"{MOST_BYTES_OF_USER >> 10} and {MOST_BYTES >> 10}"
            )
        run.document, run.memory = document, memory
        return True

    def disconnected(self, connection: int) -> Run | None:
        """A connection ended; returns its run if that changes what is published."""
        run = self.of(connection)
        if run is None:
            return None
        run.connection = None
        if run.observed or run.gone:
            return None
        return self._end(run)

    def ended(self, run: Run) -> bool:
        """The process of a run has ended; True: that is news."""
        if run.gone or self.runs.get(run.job) is not run:
            return False
        self._end(run).proven = True
        return True

    def _end(self, run: Run) -> Run:
        """Nobody reads the document of a run that is gone."""
        run.gone, run.connection, run.observed = True, None, False
        run.document, run.memory = None, 0
        return run

    def leave(self, run: Run) -> None:
        """The job is over here: nothing of it stays."""
        if self.runs.get(run.job) is run:
            del self.runs[run.job]

    def forget_oldest(self) -> list[str]:
        """Drop the oldest ended jobs over `MOST_GONE`; returns their names."""
        gone = [job for job, run in self.runs.items() if run.gone]
        dropped = gone[: max(0, len(gone) - MOST_GONE)]
        for job in dropped:
            del self.runs[job]
        return dropped

    def save(self) -> list[dict[str, Any]]:
        """JSON of what a successor has to know."""
        return [
            {"job": run.job, "incarnation": run.incarnation, "uid": run.uid, "pid": run.pid,
             "start": run.start, "gone": run.gone}
            for run in self.runs.values()
        ]  # fmt: skip

    def restore(self, stored: object) -> None:
        """Take over what `save` gave.

        Raises:
            ValueError: not of that form; nothing has changed.
        """
        runs: dict[str, Run] = {}
        if not isinstance(stored, list):
            raise ValueError("no list of jobs")
        for item in stored:
            if not isinstance(item, dict):
                raise ValueError("a job is no object")
            names = [item.get(key) for key in ("job", "incarnation")]
            numbers = [item.get(key) for key in ("uid", "pid", "start")]
            if not all(isinstance(name, str) and name for name in names):
                raise ValueError("a job without name or incarnation")
            if not all(type(number) is int and number >= 0 for number in numbers):
                raise ValueError(f"{names[0]:.80}: uid, pid or start is no number")
            uid, pid, start = (int(number) for number in numbers if number is not None)
            runs[str(names[0])] = Run(
                str(names[0]), str(names[1]), uid, pid, start, gone=item.get("gone") is True
            )
        self.runs = runs
        for run in runs.values():
            self._note_life(run)
