"""What the processes of a fabric-run print: to its own output with a prefix, and to files.

Without either, processes write to fabric-run's own output themselves. Else each has two pipes,
which threads read, so that nothing that blocks or fails there reaches the agent or a rank.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fabric_train.agent.lines import Lines
from fabric_train.agent.log_files import LogFiles

STREAMS = ("stdout", "stderr")
_BOTH = 3
_CLOSE_S = 10.0
_PIECE = 1 << 16


class OptionError(Exception):
    """Options of the output do not fit to each other."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the output of ranks."""
    # fmt: off
    add = parser.add_argument_group("output of the ranks").add_argument
    add("--log-prefix", action="store_true",
        help="put [rank3]: before each line of rank 3, and [p5]: before those of a spare")
    add("--log-dir", type=Path, metavar="DIR",
        help="write what each process prints to files below DIR, too; a disk that is full or "
        "cannot be written never stops the job")
    add("--tee", type=int, choices=range(_BOTH + 1), metavar="N",
        help="with --log-dir: what is printed on fabric-run's own output besides; 0 nothing, 1 "
        "standard output, 2 standard error, 3 both (default: 3)")
    # fmt: on


def outputs_of(args: argparse.Namespace, report: Callable[[str], None]) -> Outputs | None:
    """As the options say; None: processes write for themselves. Raises ``OptionError``."""
    if args.tee is not None and args.log_dir is None:
        raise OptionError("--tee: nothing would be kept without --log-dir DIR")
    if args.log_dir is None and not args.log_prefix:
        return None
    files = None
    if args.log_dir is not None:
        begun = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        run = f"{args.job}-{begun}-{socket.gethostname()}-{os.getpid()}".replace("/", "_")
        files = LogFiles(args.log_dir.absolute() / run, report)
        report(f"output of the ranks is in {files.directory}")
    return Outputs(files, _BOTH if args.tee is None else args.tee, prefixed=args.log_prefix)


@dataclass
class _Process:
    """``pipes``: what the process itself gets. ``ended``: an eventfd that tells its threads."""

    label: str
    ended: int
    pipes: tuple[int, int]
    threads: list[threading.Thread] = field(default_factory=list)


class Outputs:
    """Of one fabric-run. Methods are the agent's thread's."""

    def __init__(self, files: LogFiles | None, tee: int = _BOTH, *, prefixed: bool = False) -> None:
        """``tee``: bit 0 for standard output, bit 1 for standard error."""
        self._files = files
        self._shown = [bool(tee & 1), bool(tee & 2)]
        self._prefixed = prefixed
        self._processes: dict[str, _Process] = {}
        self._threads: list[threading.Thread] = []
        self._console = threading.Lock()  # whole lines of one process after the other

    def open(self, process: str) -> tuple[int, int]:
        """Standard output and error for ``process``, which starts now; then call `started`."""
        name = process.rpartition("/")[2]
        reads, writes = zip(*(os.pipe2(os.O_CLOEXEC) for _ in STREAMS), strict=True)
        one = _Process(name, os.eventfd(0, os.EFD_CLOEXEC), (writes[0], writes[1]))
        self._processes[process] = one
        for number, read in enumerate(reads):
            thread = threading.Thread(
                target=self._pump, args=(one, name, number, read), name="fabric-output", daemon=True
            )
            one.threads.append(thread)
            thread.start()
        self._threads = [thread for thread in self._threads if thread.is_alive()] + one.threads
        return one.pipes

    def started(self, process: str) -> None:
        """``process`` has its ends of the pipes, or could not be started."""
        for pipe in self._processes[process].pipes:
            os.close(pipe)

    def ranked(self, process: str, rank: int | None) -> None:
        """``process`` has ``rank`` from now on; None: none."""
        one, name = self._processes.get(process), process.rpartition("/")[2]
        if one is None:
            return
        label = name if rank is None else f"rank{rank}"
        if self._files is not None and rank is not None and label != one.label:
            self._files.link(label, name)
        one.label = label

    def ended(self, process: str) -> None:
        """``process`` is gone; what it has started may live on, and hold the pipes."""
        one = self._processes.pop(process, None)
        if one is not None:
            os.eventfd_write(one.ended, 1)
            threading.Thread(target=_close_after, args=(one,), daemon=True).start()

    def close(self, limit_s: float = _CLOSE_S) -> None:
        """Return when all that ended processes have printed is written, or after ``limit_s``."""
        deadline = time.monotonic() + limit_s
        for process in list(self._processes):
            self.ended(process)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._files is not None:
            self._files.close(max(1.0, deadline - time.monotonic()))

    def _pump(self, one: _Process, name: str, number: int, read: int) -> None:
        lines, file = Lines(), f"{name}/{STREAMS[number]}"
        poll = select.poll()
        poll.register(read, select.POLLIN)
        poll.register(one.ended, select.POLLIN)
        ready: set[int] = set()
        while read in ready or one.ended not in ready:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if read not in ready:
                continue
            data = os.read(read, _PIECE)
            if not data:
                break
            if self._files is not None:
                self._files.write(file, data)
            if self._shown[number]:
                self._show(one, number, lines.feed(data) if self._prefixed else [data])
        os.close(read)
        if self._shown[number]:
            self._show(one, number, lines.end())

    def _show(self, one: _Process, number: int, pieces: list[bytes]) -> None:
        if not pieces:
            return
        before = f"[{one.label}]: ".encode() if self._prefixed else b""
        text = b"".join(before + piece for piece in pieces)
        with self._console:
            while text:
                try:
                    text = text[os.write(number + 1, text) :]
                except OSError:
                    return  # a full disk or a reader that has gone is no reason to end a rank


def _close_after(one: _Process) -> None:
    for thread in one.threads:
        thread.join()
    os.close(one.ended)
