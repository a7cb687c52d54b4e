"""The job socket: every fabric-run of this host talks to fabricd here.

Any user may connect; who it is, the kernel says (SO_PEERCRED). A user who floods it is read slowly,
and one who does not read is disconnected: neither delays a decision about a link.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Protocol

import structlog

from fabricd.control.accepting import WAITING, connections
from fabricd.control.access import caller_of
from fabricd.control.pace import Pace
from fabricd.escalate.job_lines import (
    Document,
    Fenced,
    LineError,
    Register,
    encode_line,
)
from fabricd.escalate.job_registry import JobRegistry, RefusedError, Run
from fabricd.escalate.line_reader import LineReader, LineTurns

MOST_CONNECTIONS, MOST_OF_USER = 256, 32
"""Of all users, and of one."""
REGISTER_S = 5.0
"""Within which a connection has to say who it is."""
DRAIN_S = 10.0
"""A fabric-run that does not read for so long is disconnected."""
LAST_LINES_S = 1.0
"""Within which the lines are read that a process had sent before it ended."""
NAMES_RATE, NAMES_BURST = 0.05, 500
"""New names of jobs of one user: a second, and at once. A fabric-compute takes no more of a uid
(`compute.name_budget`), and knows not which uids are one user's."""
SO_PEERPIDFD = 77
"""Linux 6.5; the socket module has no name for it."""


class JobOwner(Protocol):
    """Who is told of fabric-runs. No method may block."""

    def registered(self, run: Run, session: Session) -> None:
        """A fabric-run is there, perhaps again; it gets what it has to know."""

    def document_changed(self, run: Run) -> None:
        """Its document is another one."""

    def fence_applied(self, run: Run, fence_id: str) -> None:
        """It has applied a fence."""

    def run_gone(self, run: Run) -> None:
        """Its process has ended without leaving."""

    def run_left(self, run: Run) -> None:
        """It has left: the job is over here."""

    def job_line_refused(self, reason: str, detail: str) -> None:
        """A line, a connection or a registration was refused. ``reason`` is one of a few words."""


class Session:
    """What is to be sent to one fabric-run: of each key the newest line, in order."""

    def __init__(self) -> None:
        self._lines: dict[str, bytes] = {}
        self._sent: dict[str, bytes] = {}
        self._wake = asyncio.Event()
        self._closing = False
        self.reading: asyncio.Task[None] | None = None
        """Reads what the fabric-run says, until its connection ends."""

    def send(self, key: str, line: bytes) -> None:
        """Send a line soon, unless it is the last one of that key."""
        if self._lines.get(key, self._sent.get(key)) != line:
            self._lines[key] = line
            self._wake.set()

    def close(self) -> None:
        """End the connection when everything is sent."""
        self._closing = True
        self._wake.set()

    async def run(self, sock: socket.socket) -> None:
        """Send until closed. Raises ``TimeoutError``: the other side does not read."""
        loop = asyncio.get_running_loop()
        while self._lines or not self._closing:
            if not self._lines:
                self._wake.clear()
                await self._wake.wait()
                continue
            key = next(iter(self._lines))
            line = self._sent[key] = self._lines.pop(key)
            async with asyncio.timeout(DRAIN_S):
                await loop.sock_sendall(sock, line)


class JobServer:
    """Serves ``path`` for one `JobOwner`."""

    def __init__(self, path: Path, registry: JobRegistry, owner: JobOwner) -> None:
        self.registry = registry
        self._path, self._owner = path, owner
        self._pace = Pace(time.monotonic)
        self._turns = LineTurns()
        self._names = Pace(time.monotonic, rate=NAMES_RATE, burst=NAMES_BURST, least=1)
        self._connections: Counter[int] = Counter()
        self._clients: set[asyncio.Task[None]] = set()
        self._observed: dict[int, Run] = {}
        """pidfd → the run whose process it is."""
        self._sessions: dict[str, Session] = {}
        self._number = 0
        self._closing = False
        self._listening: socket.socket | None = None
        self._log = structlog.get_logger()

    def session(self, job: str) -> Session | None:
        """Where to send lines for a job; None: its fabric-run is not connected."""
        return self._sessions.get(job)

    def open(self) -> None:
        """Bind and listen; an old socket of that name is replaced. Raises ``OSError``."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listening.bind(str(self._path))
            self._path.chmod(0o666)
            listening.listen(WAITING)
        except OSError:
            listening.close()
            raise
        self._listening = listening

    async def run(self) -> None:
        """Accept until cancelled; then everything is closed."""
        assert self._listening is not None
        try:
            async for sock in connections(self._listening, "job socket"):
                self._accept(sock)
        finally:
            await self._close()

    def observe(self, run: Run, sock: socket.socket | None = None) -> bool:
        """Be told when the process of ``run`` ends; where nobody can say, its connection counts.

        Returns:
            False: it has ended already.
        """
        try:
            fd = _pidfd(run.pid, sock)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        if sock is None and run.start and start_time(run.pid) not in (0, run.start):
            os.close(fd)  # Another process has its number by now.
            return False
        run.observed = True
        self._observed[fd] = run
        asyncio.get_running_loop().add_reader(fd, self._ended, fd)
        return True

    def _ended(self, fd: int) -> None:
        run = self._forget(fd)
        task = asyncio.create_task(self._process_ended(run))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _process_ended(self, run: Run) -> None:
        """Judge a run by the last lines of its process: it may have left before it ended.

        The kernel closed the connection before it reported the end, so that all lines are there.
        """
        session = self._sessions.get(run.job)
        if session is not None and session.reading is not None:
            await asyncio.wait({session.reading}, timeout=LAST_LINES_S)
        if self.registry.ended(run):
            if session is not None:
                session.close()
            self._owner.run_gone(run)

    def _unobserve(self, run: Run) -> None:
        for fd in [fd for fd, other in self._observed.items() if other is run]:
            self._forget(fd)

    def _forget(self, fd: int) -> Run:
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
        return self._observed.pop(fd)

    async def _close(self) -> None:
        self._closing = True  # Who is disconnected by our end has not ended.
        for fd in list(self._observed):
            self._forget(fd)
        if self._listening is not None:
            self._listening.close()
        for task in list(self._clients):
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _accept(self, sock: socket.socket) -> None:
        try:
            caller = caller_of(sock)
        except OSError:
            sock.close()
            return
        user = self.registry.user_of(caller.uid)
        full = self._connections[user] >= MOST_OF_USER
        if full or self._connections.total() >= MOST_CONNECTIONS:
            sock.close()
            self._owner.job_line_refused("connections", f"uid {caller.uid} has too many")
            return
        self._connections[user] += 1
        task = asyncio.create_task(self._client(sock, caller.uid, caller.pid))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _client(self, sock: socket.socket, uid: int, pid: int) -> None:
        self._number += 1
        number, user = self._number, self.registry.user_of(uid)
        try:
            reader = LineReader(sock, user, self._turns, self._pace)
            await self._serve(reader, sock, (uid, pid, number))
        except (OSError, TimeoutError, EOFError):
            pass  # It went away, or does not read or write.
        finally:
            self._connections[user] -= 1
            if not self._connections[user]:
                del self._connections[user]
            run = None if self._closing else self.registry.disconnected(number)
            if run is not None:
                self._owner.run_gone(run)
            sock.close()

    async def _serve(
        self, reader: LineReader, sock: socket.socket, who: tuple[int, int, int]
    ) -> None:
        uid, pid, number = who
        session = Session()
        sending = asyncio.create_task(session.run(sock))
        job = ""
        try:
            async with asyncio.timeout(REGISTER_S):
                line = await reader.next()
            if not isinstance(line, Register):
                raise LineError("the first line has to register")
            before = self.registry.runs.get(line.job)
            if before is None and not self._names.takes(self.registry.user_of(uid), 1):
                raise RefusedError(
                    f"the user of uid {uid} has named {NAMES_BURST} new jobs lately; from now on "
                    f"one in {1 / NAMES_RATE:.0f} s"
                )
            run = self.registry.register(line.job, line.incarnation, uid, pid, number)
            job = run.job
            if not run.observed:
                run.start = start_time(pid)
                self.observe(run, sock)
            if before is run and (old := self._sessions.get(job)) is not None:
                old.close()
            self._sessions[job] = session
            self._owner.registered(run, session)
            session.reading = reading = asyncio.create_task(self._read(reader, run, number))
            try:
                await asyncio.wait({reading, sending}, return_when=asyncio.FIRST_COMPLETED)
                await (reading if reading.done() else sending)
            finally:
                await _cancelled(reading)
        except (LineError, RefusedError) as error:
            # What is registered is refused for the memory of its document alone.
            registered = "document" if job else "registration"
            reason = "line" if isinstance(error, LineError) else registered
            self._owner.job_line_refused(reason, f"uid {uid}, process {pid}: {error}")
            session.send("refused", encode_line("refused", reason=str(error)))
            session.close()
            await sending
        finally:
            if self._sessions.get(job) is session:
                del self._sessions[job]
            await _cancelled(sending)

    async def _read(self, reader: LineReader, run: Run, number: int) -> None:
        while True:
            line = await reader.next()
            if run.connection != number:
                return  # It has connected anew meanwhile, or its process has ended.
            if isinstance(line, Document):
                if self.registry.keep(run, line.document, line.memory):
                    self._owner.document_changed(run)
            elif isinstance(line, Fenced):
                self._owner.fence_applied(run, line.id)
            elif isinstance(line, Register):
                raise LineError("register: it is registered")
            else:
                self.registry.leave(run)
                self._unobserve(run)
                self._owner.run_left(run)
                return


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it lets go of its socket."""
    task.cancel()
    await asyncio.wait({task})


def _pidfd(pid: int, sock: socket.socket | None) -> int:
    """A descriptor of the process at the other end of a socket, or of a number."""
    if sock is not None:
        with contextlib.suppress(OSError):
            return int(sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
    if pid <= 0:
        raise OSError("of another pid namespace")
    return os.pidfd_open(pid)


def start_time(pid: int) -> int:
    """When a process started, in ticks since boot (proc(5)); 0: not to be seen."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
        return int(text[text.rindex(b")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
