"""Since when each host of a job is dark, how often it was, and whether the job steps on. Pure.

Times are seconds of the caller: the arrival of messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from fabric_train.messages.documents import AgentDocument, JobGeneration

LATE_S = 0.3
"""A collective that ended before its host became dark may be reported as much later."""
STEP_UNKNOWN_S = 30.0
"""A step is overdue after this where the job's step length is not known."""
OVERDUE_STEPS = 3.0
MOST_FLAPS = 64
APART_S = 0.3
"""One absence may seem to be several, as what its observers say comes one by one."""
UNSEEN_S = 1.0
"""So long after a core is there again its hosts have said what they hear; what is dark by then may
have been dark for long.
"""


class Absence:
    """When each host of one job became dark."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._began: dict[str, deque[float]] = {}
        self._untold: dict[str, float] = {}
        self._elsewhere: dict[str, float] = {}
        self._core_at: float | None = None
        """Since when there is a core; None: there is none."""

    def calm(self, now: float) -> None:
        """Nobody speaks against any host."""
        self.note_core(True, now)
        self.update((), now)

    def note_core(self, found: bool, now: float) -> None:
        """Whether a majority of the job's hosts hears each other; ``now``: seconds."""
        if not found:
            self._core_at = None
        elif self._core_at is None:
            self._core_at = now

    def update(
        self, dark: Collection[str], now: float, untold: Collection[str] = (),
        elsewhere: Collection[str] = (),
    ) -> None:  # fmt: skip
        """These hosts are dark now, and no others.

        ``untold``: hosts that a generation waits for, and that no order reaches. ``elsewhere``:
        hosts that are gone on the network that is not the job's.
        """
        self._untold = {host: self._untold.get(host, now) for host in untold}
        self._elsewhere = {host: self._elsewhere.get(host, now) for host in elsewhere}
        for host in self._since.keys() - set(dark):
            del self._since[host]
        for host in dark:
            if host not in self._since:
                self._since[host] = now
                began = self._began.setdefault(host, deque(maxlen=MOST_FLAPS))
                if not began or now - began[-1] >= APART_S:
                    began.append(now)

    def since(self, host: str) -> float | None:
        """When it became dark; None: it is not."""
        return self._since.get(host)

    def began_unseen(self, host: str) -> bool:
        """It was dark as soon as there was a core: nobody knows since when it is dark."""
        since, core_at = self._since.get(host), self._core_at
        return since is not None and (core_at is None or since <= core_at + UNSEEN_S)

    def untold_since(self, host: str) -> float | None:
        """Since when a generation waits for it that it cannot hear of; None: none does."""
        return self._untold.get(host)

    def gone_elsewhere_since(self, host: str) -> float | None:
        """Since when it is gone on the network that is not the job's; None: it is not."""
        return self._elsewhere.get(host)

    def times(self, host: str, window_s: float, now: float) -> int:
        """How often it became dark within the last ``window_s`` seconds."""
        return sum(now - at <= window_s for at in self._began.get(host, ()))

    def forget(self, host: str) -> None:
        """Its agent is another one: the past is not its own."""
        for known in (self._since, self._began, self._untold, self._elsewhere):
            known.pop(host, None)


class StepWatch:
    """When the job's ranks last finished a step or a collective, and how long a step takes."""

    def __init__(self) -> None:
        self._step = 0
        self._step_at: float | None = None
        self._step_s: float | None = None
        self._reports: dict[str, tuple[int, int, float]] = {}
        """Process → its step, its collectives, and when it said so."""
        self._moved_at: float | None = None
        self._moved_after = float("-inf")
        self._looks: dict[str, int] = {}
        self._still_at = float("-inf")
        self._generation = 0
        self._generations: deque[float] = deque(maxlen=MOST_FLAPS)

    def update(self, document: AgentDocument, generation: JobGeneration | None, now: float) -> None:
        """An agent says how far its processes are; those without a rank do not count."""
        if generation is None:
            return
        if generation.number > self._generation:
            self._generation = generation.number
            self._generations.append(now)
        ranks = [one for one in document.processes if generation.has_rank(one.process)]
        moved = [self._report(one.process, one.step, one.collectives, now) for one in ranks]
        if document.looks != self._looks.get(document.host, 0):
            self._looks[document.host] = document.looks
            if moved and not any(moved):
                self._still_at = now
        if len(self._reports) > 2 * len(generation.slots):
            known = self._reports
            self._reports = {name: known[name] for name in known if generation.has_rank(name)}

    def _report(self, process: str, step: int, collectives: int, now: float) -> bool:
        """Whether it is further than at its report before, or the first."""
        before = self._reports.get(process)
        self._reports[process] = (step, collectives, now)
        if step > self._step:
            if self._step_at is not None:
                self._step_s = (now - self._step_at) / (step - self._step)
            self._step, self._step_at = step, now
        if before is None:
            return True
        if (step, collectives) <= before[:2]:
            return False
        # It happened after the report before, and at the latest now.
        self._moved_at = now
        self._moved_after = max(self._moved_after, before[2])
        return True

    def moved_since(self, then: float) -> bool:
        """A rank has finished a step or a collective that began after ``then``."""
        return self._moved_after > then + LATE_S

    def is_witnessed(self, due: float) -> bool:
        """After ``due`` an agent with ranks has said that they made no step since its look before.

        Where nobody says it, e.g. as all have lost the broker, no news is no evidence.
        """
        return self._still_at >= due

    def generations(self, window_s: float, now: float) -> int:
        """How many generations have begun within the last ``window_s`` seconds."""
        return sum(now - at <= window_s for at in self._generations)

    def goes_on(self, then: float, least_s: float, now: float) -> bool:
        """The job has stepped since ``then``, and the next step is not overdue."""
        return self.moved_since(then) and now < self.expected_by(least_s)

    def expected_by(self, least_s: float) -> float:
        """When the step after the last one is overdue: in three times the usual, or ``least_s``."""
        return (self._moved_at or 0.0) + max(least_s, OVERDUE_STEPS * (self._step_s or 0.0))

    def overdue_s(self, least_s: float) -> float:
        """After so many seconds without a step one is overdue."""
        if self._step_s is None:
            return max(least_s, STEP_UNKNOWN_S)
        return max(least_s, OVERDUE_STEPS * self._step_s)

    @property
    def moved_at(self) -> float | None:
        """When the last step or collective was reported; None: none yet."""
        return self._moved_at
