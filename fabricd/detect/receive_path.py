"""Is what had reached this host's kernel delivered? Pure; asked before silence is a verdict.

Between a device and a socket a packet stands in the backlog of one CPU (softnet: what RPS, veth and
loopback hand over goes through it). Where that CPU's softirq does not run (ksoftirqd waits behind
compute threads, the hypervisor has taken the CPU away) it stands there for 10 to 20 ms, while what
came by other CPUs is heard and vouches that the peers sent. So a verdict of silence waits until
each CPU has processed as many packets as it had processed and waiting when the verdict was due, and
until the prober has written its table after that: what was delivered meanwhile is in it. Where
nothing waits, a table that is older than a link interval is not enough either: the daemon itself
was late, and a backlog may have come and gone since the prober wrote.

What waits in a NIC's own receive ring is not counted here, and cannot be seen.

The counters are those of ``/proc/net/softnet_stat`` (Linux net/core/net-procfs.c,
``softnet_seq_show``): a line for each CPU online, columns of eight hex digits. Column 0 counts the
packets processed, modulo 2^32; column 11 is the length of the backlog (``input_pkt_queue`` and
``process_queue``) and column 12 the CPU, both since Linux 5.10.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

LONGEST_NS = 2 * 10**9
"""The longest stall of the receive path that a verdict waits for."""
AGAIN_NS = 1_000_000
"""A verdict that waits is asked again so soon at first; later after a sixteenth of its wait."""
_MASK = 0xFFFF_FFFF
_DIGITS = b"0123456789abcdef"
_PROCESSED, _WAITING, _CPU = 0, 11, 12
"""Columns."""


class SoftnetError(ValueError):
    """Not such a file, or one of a kernel that does not tell the backlog's length."""


class Queue(NamedTuple):
    """The receive backlog of one CPU."""

    cpu: int
    processed: int
    """Packets, modulo 2^32."""
    waiting: int
    """Packets."""


class Reading(NamedTuple):
    """All CPUs' backlogs."""

    read_ns: int
    """CLOCK_MONOTONIC, when the reading was done: what it says waits did so before."""
    queues: list[Queue]


class Answer(NamedTuple):
    """Whether a verdict has to wait, and what is to be said of the receive path; "": nothing."""

    wait: bool
    why: str = ""


def parse(data: bytes) -> list[Queue]:
    """The whole file.

    Raises:
        SoftnetError: it is none.
    """
    # Cells of eight digits and what is between them; many CPUs make a long file, so no loop.
    between = data[8::9]
    columns = between.find(b"\n") + 1
    lines = (b" " * (columns - 1) + b"\n") * (len(between) // max(1, columns))
    cells = len(data) == 9 * len(between) and data.translate(None, _DIGITS) == between
    if not between or not cells or between != lines:
        raise SoftnetError(f"softnet_stat: not understood: {data[:40]!r}")
    if columns <= _CPU:
        raise SoftnetError(
            "softnet_stat: this kernel does not tell the backlog's length (Linux 5.10 does)"
        )
    numbers = struct.unpack(f">{len(between)}I", bytes.fromhex(data.decode("ascii")))
    cpus = numbers[_CPU::columns]
    if len(set(cpus)) != len(cpus):
        raise SoftnetError("softnet_stat: one CPU has two lines")
    return list(map(Queue, cpus, numbers[_PROCESSED::columns], numbers[_WAITING::columns]))


@dataclass(slots=True)
class _Wait:
    """One silence that is about to be a verdict, or is one."""

    since_ns: int = 0
    marks: dict[int, int] = field(default_factory=dict)
    """CPU → what its ``processed`` has to reach; only those that have not."""
    delivered_ns: int | None = None
    """When all were found to have reached theirs."""
    over: bool = False
    why: str = ""


class ReceivePath:
    """What verdicts of silence wait for.

    Attributes:
        read: reads the backlogs; None: there is no source, and nothing waits.
        held: verdicts that had to wait for a backlog, since the start.
        again_ns: when those that wait now want to be asked again; None: none does.
    """

    def __init__(self, read: Callable[[], Reading | None] = lambda: None) -> None:
        self.read = read
        self.held = 0
        self.again_ns: int | None = None
        self._waits: dict[Hashable, _Wait] = {}
        self._asked: set[Hashable] = set()
        self._reading: Reading | None = None

    def reset(self) -> None:
        """The silences have other names from now on."""
        self._waits.clear()

    def begin(self) -> None:
        """All silences are looked at: each that is one is asked about until `end`."""
        self._asked.clear()
        self._reading, self.again_ns = None, None

    def end(self) -> None:
        """Forget the silences that are none any more: the next one waits anew."""
        for key in self._waits.keys() - self._asked:
            del self._waits[key]

    def keep(self, silence: Hashable) -> None:
        """A silence that is there though nothing asks about it now: its wait goes on."""
        self._asked.add(silence)

    def ask(self, silence: Hashable, as_of: int, interval_ns: int) -> Answer:
        """Whether a silence that would be a verdict now has to wait.

        Args:
            silence: which.
            as_of: when the prober wrote the table that shows it, CLOCK_MONOTONIC ns.
            interval_ns: the link interval. In a row of misses the prober writes that often at
                least; it drains its sockets first and writes last, a fraction of it later.
        """
        self._asked.add(silence)
        wait = self._waits.get(silence)
        if wait is not None and wait.over:
            return Answer(wait=False, why=wait.why)
        if self._reading is None:
            self._reading = self.read()
        reading = self._reading
        if reading is None:
            self._waits[silence] = _Wait(over=True)
            return Answer(wait=False)
        if wait is None:
            wait = self._waits[silence] = _Wait(reading.read_ns, _marks(reading))
            # The usual case: nothing waits, nothing is delayed.
            wait.over = not wait.marks and reading.read_ns - as_of <= interval_ns
            self.held += bool(wait.marks)
        else:
            self._advance(wait, reading)
        if not wait.marks and wait.delivered_ns is None:
            wait.delivered_ns = reading.read_ns
        if wait.delivered_ns is not None and as_of >= wait.delivered_ns + interval_ns // 4:
            wait.over = True
        if wait.over:
            return Answer(wait=False, why=wait.why)
        again = reading.read_ns + max(AGAIN_NS, (reading.read_ns - wait.since_ns) // 16)
        self.again_ns = again if self.again_ns is None else min(again, self.again_ns)
        return Answer(wait=True, why=_behind(wait.marks))

    @staticmethod
    def _advance(wait: _Wait, reading: Reading) -> None:
        queues = {queue.cpu: queue for queue in reading.queues}
        wait.marks = {
            cpu: mark for cpu, mark in wait.marks.items() if _is_behind(queues.get(cpu), mark)
        }
        if wait.marks and reading.read_ns - wait.since_ns >= LONGEST_NS:
            wait.over = True
            wait.why = f"the kernel's receive path is stalled on CPU {_cpus(wait.marks)}"


def _marks(reading: Reading) -> dict[int, int]:
    return {q.cpu: (q.processed + q.waiting) & _MASK for q in reading.queues if q.waiting}


def _is_behind(queue: Queue | None, mark: int) -> bool:
    """Whether a CPU has yet to reach its mark.

    An empty backlog is no longer behind, whatever was processed: a device that goes takes its
    packets out of it. A CPU that goes offline has no line, and leaves its backlog to another.
    """
    if queue is None or not queue.waiting:
        return False
    return (queue.processed - mark) & _MASK > _MASK // 2


def _behind(marks: dict[int, int]) -> str:
    if not marks:
        return "what the kernel has delivered is yet to be read"
    return f"the kernel's receive path is behind on CPU {_cpus(marks)}"


def _cpus(marks: dict[int, int]) -> str:
    return ", ".join(str(cpu) for cpu in sorted(marks))
