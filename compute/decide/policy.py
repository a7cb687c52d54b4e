"""The limits of all decisions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """Times in seconds. The defaults suit jobs of 2 to 2,000 hosts."""

    min_observers: int = 2  # so many hosts have to call a host silent, and more than half
    away_s: float = 3.0  # so long the job's network of a host may be away without a step
    flaps: int = 5  # so often within `flap_window_s` it may be away for shorter
    flap_window_s: float = 30.0
    deaf_s: float = 10.0  # as `away_s`, where the host alone says so: longer than a last will takes
    untold_s: float = 15.0  # so long a generation waits for a host that no order reaches
    formation_wait_s: float = 60.0  # for spares; a job forms without them after this
    late_s: float = 600.0  # so long hosts wait for others that come after the end of their job
    answer_s: float = 30.0  # a rank that has not acknowledged a generation counts as lost
    accept_s: float = 5.0  # a generation that is not accepted in this time is proposed anew
    recovery_s: float = 120.0  # a generation in which not all ranks recover is given up
    suspicion_s: float = 5.0  # a failed collective without a lost process: connect anew
    recoveries_without_progress: int = 5
    starts: int = 3  # of a job whose ranks end before it has state
    budget_window_s: float = 600.0
    budget_percent: float = 10.0  # of all hosts, in one window
    budget_least: int = 2  # may be fenced in one window in any case
    budget_most: int = 16  # never more in one window
    rack_hosts: int = 3  # so many lost hosts of one rack within `rack_window_s` blame its switch
    rack_window_s: float = 2.0
    slow_percent: float = 8.0  # a rank is slow that needs so much more time of its own than others
    maintenance: tuple[str, ...] = ()  # hosts for which nothing is decided
