"""Processes of a lab: started inside a namespace, recorded in pid files, ended by pid.

A pid is only trusted together with its start time (field 22 of /proc/<pid>/stat, proc(5)): pids are
reused, start times of one pid are not. The kernel tells a start time on the clock of the reader's
time namespace; here it is on the machine's.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lab.network import netns

_TICKS = os.sysconf("SC_CLK_TCK")
_WRAPS = -(-(2**64) * _TICKS // 10**9)
"""2^64 ns in ticks: the kernel counts a start in nanoseconds without a sign."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, told apart from a later one with the same pid.

    ``start`` is in clock ticks since the machine was booted, whatever the time namespace.
    """

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """That of a running process; None when there is none (a zombie counts as none)."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        # The command may hold spaces and parentheses: fields count from the last ')'.
        fields = text[text.rindex(")") + 2 :].split()
        if fields[0] in {"Z", "X"}:
            return None
        start = int(fields[19])
        if start > _WRAPS // 2:  # Before the time namespace began: a negative number of 64 bits.
            start -= _WRAPS
        return cls(pid, start - clock_offsets_s()["boottime"] * _TICKS)

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        now = ProcessId.of(self.pid)
        if now is None or now == self:
            return now == self
        before = now.start + clock_offsets_s()["boottime"] * _TICKS < 0
        return before and abs(now.start - self.start) <= 1  # `_WRAPS` is rounded.

    @property
    def stopped(self) -> bool:
        """Whether it runs no more code of its own: stopped, about to stop, or gone.

        A parent in vfork(2) cannot stop before its child execs, which a stopped child does not: a
        pending SIGSTOP is enough.
        """
        try:
            text = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return True
        fields = dict(line.split(":", 1) for line in text.splitlines())
        pending = int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16)
        return fields["State"].split()[0] in "TtZX" or bool(pending >> (signal.SIGSTOP - 1) & 1)

    def signal(self, number: int) -> bool:
        """Send a signal to this very process; False when it is gone."""
        if not self.alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


@functools.cache
def clock_offsets_s() -> dict[str, int]:
    """What this process's time namespace adds to ``monotonic`` and ``boottime``, in seconds.

    See time_namespaces(7); 0 where the kernel has no such namespaces.
    """
    try:
        rows = [line.split() for line in Path("/proc/self/timens_offsets").read_text().splitlines()]
    except OSError:
        rows = []
    return {"monotonic": 0, "boottime": 0} | {name: int(seconds) for name, seconds, _ in rows}


@functools.cache
def myself() -> ProcessId:
    """The calling process."""
    me = ProcessId.of(os.getpid())
    assert me is not None
    return me


def popen(
    ns: str,
    args: Sequence[str | os.PathLike[str]],
    *,
    pid_dir: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int | IO[Any] | None = subprocess.DEVNULL,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    text: bool = True,
) -> subprocess.Popen[Any]:
    """Start ``args`` in a namespace as the leader of a session of its own.

    ``ip netns exec`` mounts a fresh /sys, so that /sys/class/net shows that namespace, and then
    becomes the command: the pid is the command's own. With ``pid_dir`` it is recorded there.
    """
    command = ["ip", "netns", "exec", ns, *(os.fspath(a) for a in args)]
    process = subprocess.Popen(
        command,
        env=None if env is None else dict(env),
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        text=text,
        start_new_session=True,
    )
    if pid_dir is not None:
        record(pid_dir, process.pid, [os.fspath(a) for a in args])
    return process


def record(pid_dir: Path, pid: int, args: list[str]) -> None:
    """Write the pid file of a process that was just started."""
    who = ProcessId.of(pid)
    if who is None:  # ended already
        return
    pid_dir.mkdir(parents=True, exist_ok=True)
    (pid_dir / f"{pid}.json").write_text(
        json.dumps({"pid": who.pid, "start": who.start, "args": args})
    )


def recorded(pid_dir: Path) -> list[ProcessId]:
    """Those of the pid files that still run; files of ended ones are removed."""
    running = []
    if not pid_dir.is_dir():
        return []
    for path in pid_dir.glob("*.json"):
        try:
            row = json.loads(path.read_text())
            who = ProcessId(int(row["pid"]), int(row["start"]))
        except (OSError, ValueError, KeyError):
            continue  # half written by a crash: the namespace scan finds its process
        if who.alive:
            running.append(who)
        else:
            path.unlink(missing_ok=True)
    return running


def inhabitants(namespaces: Iterable[str]) -> list[ProcessId]:
    """Processes inside the namespaces, except the calling one."""
    me = os.getpid()
    found = (ProcessId.of(pid) for pid in netns.pids(list(namespaces)) if pid != me)
    return [who for who in found if who is not None]


def end_all(who: Iterable[ProcessId], grace_s: float = 0.5) -> None:
    """SIGTERM, then SIGKILL after ``grace_s``; returns when all are gone, or after 2 s more."""
    left = [p for p in who if p.signal(signal.SIGTERM)]
    for p in left:
        p.signal(signal.SIGCONT)  # a frozen process cannot act on SIGTERM
    _wait(left, grace_s)
    left = [p for p in left if p.signal(signal.SIGKILL)]
    _wait(left, 2.0)


def _wait(who: list[ProcessId], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(p.alive for p in who) and time.monotonic() < deadline:
        time.sleep(0.01)
