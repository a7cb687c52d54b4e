"""Which ranks of this host are frozen, which are silent, and which wait. Pure.

Only time counts that this agent has seen pass: whoever stops all processes of a job, as a scheduler
does that suspends it, stops the agent with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from fabric_train.agent.hangs import Stillness
from fabric_train.messages.documents import STANDS, WAITS
from fabric_train.messages.progress_memory import Finished
from fabric_train.rules.limits import FROZEN_S, SILENT_S, SILENT_STEPS

MOST_SEEN_S = 2.0
"""Between two looks: the agent, or its machine, was stopped for what is longer."""
MORE_PATIENT = 4
"""So many times longer a rank may be silent at a step at which one was ended for that: what every
process does there is the script's."""

_HELD = "runs no Python, for a call holds the interpreter's lock (GIL)"


@dataclass
class _Same:
    """Something that has not changed since it was looked at first."""

    sign: tuple[int, ...] = ()
    looked_at: float = 0.0
    seen_s: float = 0.0

    def look(self, sign: tuple[int, ...], now: float) -> float:
        """For how long it is ``sign`` already."""
        if sign != self.sign:
            self.sign, self.seen_s = sign, 0.0
        else:
            self.seen_s += min(now - self.looked_at, MOST_SEEN_S)
        self.looked_at = now
        return self.seen_s


class HangWatch:
    """Of one host. Times are seconds, monotonic."""

    def __init__(self, hang_s: float | None = None, frozen_s: float = FROZEN_S) -> None:
        """``hang_s``: a rank may be silent so long; None: as its longest step allows; 0: for ever.

        ``frozen_s``: it may be frozen so long; 0: for ever.
        """
        self._hang_s = hang_s
        self._frozen_s = 0.0 if hang_s == 0 else frozen_s
        self._longest_s = 0.0
        self._silent: dict[str, _Same] = {}
        self._beats: dict[str, _Same] = {}
        self._ended_at: tuple[int, int] = 0, 0
        """A step, and how many ranks were ended for their silence there."""

    def silent_s(self, step: int) -> float:
        """How long a rank may be silent after ``step`` steps; 0: for ever."""
        own = max(SILENT_S, SILENT_STEPS * self._longest_s)
        limit = own if self._hang_s is None else self._hang_s
        at, times = self._ended_at
        return limit * float(MORE_PATIENT**times if at == step else 1)

    def look(self, process: str, done: Finished, now: float) -> Stillness:
        """What ``process`` does, which holds a rank. ``done``: as it and the kernel say."""
        self._longest_s = max(self._longest_s, done.longest_s)
        beats = done.beat, int(done.stopped), done.paused
        without_beat = self._beats.setdefault(process, _Same()).look(beats, now)
        sign = done.step, done.collectives, done.alone_since, int(done.stopped), done.paused
        silent = self._silent.setdefault(process, _Same()).look(sign, now)
        held = bool(done.beat) and not done.paused
        if self._frozen_s and (done.stopped or held) and without_beat >= self._frozen_s:
            what = "is stopped by a signal" if done.stopped else _HELD
            text = f"hangs: it {what}, for {self._frozen_s:g} s already"
            return Stillness(STANDS, frozen=True, why=text)
        limit = self.silent_s(done.step)
        if not limit or done.stopped or done.paused:
            return Stillness()
        if done.alone_since and silent >= limit:
            text = f"works without a collective, for {limit:.3g} s already, and the others wait"
            return Stillness(STANDS, why=f"hangs: it {text}")
        # Others wait as long as the one stands, less the time to find that out.
        runs = not done.beat or without_beat <= MOST_SEEN_S
        if not done.alone_since and silent >= limit / 2 and runs:
            return Stillness(WAITS)
        return Stillness()

    def ended(self, process: str, seen: Stillness) -> None:
        """``process`` was ended for what was ``seen`` of it in the last look."""
        last = self._silent.get(process)
        if last is not None and seen.still == STANDS and not seen.frozen:
            step, (at, times) = last.sign[0], self._ended_at
            self._ended_at = step, times + 1 if at == step else 1
        self.forget(process)

    def forget(self, process: str) -> None:
        """``process`` has ended."""
        self._silent.pop(process, None)
        self._beats.pop(process, None)
