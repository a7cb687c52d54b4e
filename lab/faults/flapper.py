"""Flaps one port on time: a small process of its own, ``python -m lab.faults.flapper``.

Under SCHED_FIFO where allowed, sleeping until shortly before each instant and spinning the rest, so
that a period of 2 ms holds while the machine is busy. Instants are absolute, so lateness does not
add up; only when the kernel itself was busy (RTNL is one lock for all namespaces) for more than
half a phase is the rest of the plan moved, so that no phase shrinks to nothing.

Ground truth of every transition is appended as it happens. Reads one JSON object (``Plan``) on
standard input, says ``ready``, begins at the next line, and ends by itself, on SIGTERM, or when
its parent is gone; the port is let go in each case.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from lab.faults.holds import Holder, HoldTable
from lab.faults.truth import Truth
from lab.lifecycle.procs import myself
from lab.network.rtlink import LinkSetter

PR_SET_PDEATHSIG = 1
PR_SET_TIMERSLACK = 29
SPIN_NS = 120_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What to flap. Times in nanoseconds; a cycle is ``down_ns`` down, then up."""

    ns: str
    ifname: str
    row: int
    holds: str
    truth: str
    target: str
    id: str
    period_ns: int
    down_ns: int
    count: int


def instants(start_ns: int, period_ns: int, down_ns: int, count: int) -> Iterator[tuple[int, bool]]:
    """When the port goes (time, up): 2 × count transitions."""
    for cycle in range(count):
        begin = start_ns + cycle * period_ns
        yield begin, False
        yield begin + down_ns, True


class _Stopped(Exception):  # noqa: N818 - not an error
    pass


def sleep_until(due_ns: int) -> None:
    """Until CLOCK_MONOTONIC reaches ``due_ns``: sleep most of it, spin the last 120 µs."""
    while (left := due_ns - time.monotonic_ns()) > 0:
        if left > SPIN_NS:
            time.sleep((left - SPIN_NS) / 1e9)


def flap(plan: Plan, holder: Holder, begin: Callable[[], int | None]) -> None:
    """Do the whole plan. The port is let go on any way out.

    ``begin`` is called when all is open; it returns the first instant, or None to do nothing.
    """
    truth = Truth(Path(plan.truth))
    table = HoldTable(Path(plan.holds))
    with LinkSetter(plan.ns, [plan.ifname]) as setter:

        def move(*, up: bool) -> None:
            with table.locked():
                edge = table.release if up else table.take
                if edge(plan.row, holder):
                    setter.set(plan.ifname, up=up)

        try:
            start_ns = begin()
            if start_ns is None:
                return
            times = instants(start_ns, plan.period_ns, plan.down_ns, plan.count)
            moved = 0
            half = min(plan.down_ns, plan.period_ns - plan.down_ns) // 2
            for number, (planned, up) in enumerate(times):
                due = planned + moved
                sleep_until(due)
                before = time.monotonic_ns()
                if before - due > half:
                    moved += before - due
                move(up=up)
                truth.write(
                    before,
                    "flap",
                    "up" if up else "down",
                    plan.target,
                    id=plan.id,
                    n=number // 2 + 1,
                    late_ns=before - due,
                    took_ns=time.monotonic_ns() - before,
                )
        finally:
            move(up=True)
            table.close()


def main() -> None:
    """The process."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _Stopped

    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to act on
    try:
        plan = Plan(**json.loads(sys.stdin.readline()))
        me = myself()
        holder = Holder(me.pid, me.start & 0xFFFFFFFF, 1)
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(40))
        except OSError as error:
            print(f"flapper: no SCHED_FIFO, jitter may be larger: {error}", file=sys.stderr)

        def begin() -> int | None:
            print("ready", flush=True)
            return time.monotonic_ns() if sys.stdin.readline() else None

        flap(plan, holder, begin)
    except _Stopped:
        pass


if __name__ == "__main__":
    main()
