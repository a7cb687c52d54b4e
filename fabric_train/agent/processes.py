"""The processes of one fabric-run: how they start, connect and end.

Each process gets the path of a Unix socket, its own name and the token of this run in its
environment. It says ``Hello``, and is watched by pidfd until it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from fabric_train.agent.exit_status import ExitStatuses
from fabric_train.agent.outputs import Outputs
from fabric_train.agent.places import Places
from fabric_train.agent.run_directory import SOCKET
from fabric_train.messages import progress_memory, state_memory
from fabric_train.messages.process import (
    VERSION,
    Assignment,
    Decoder,
    Ending,
    Failed,
    Hello,
    Message,
    MessageError,
    Protected,
    Refused,
    encode,
)
from fabric_train.messages.rank_environment import environment_of
from fabric_train.rules.agreement import LATE

_GRACE_S = 10.0  # between SIGTERM and SIGKILL
PARTING_S = 10.0
"""So long a process that has said that it ends may do so before SIGTERM."""


class ProcessEvents(Protocol):
    """What the owner of the processes hears of them."""

    def joined(self, process: str, software: dict[str, str]) -> None:
        """``process`` has said hello, with the versions of its ``software``."""

    def received(self, process: str, message: Message) -> None:
        """``process`` says ``message``. Raises ``MessageError`` for what no process says."""

    def disconnected(self, process: str) -> None:
        """The connection of ``process`` has ended; the process may live on."""

    def exited(self, process: str, code: int) -> None:
        """``process`` is gone, with the return code ``code`` (negative: a signal)."""


class Processes:
    """Child processes that all run ``argv``, and their connections at ``directory/agent.sock``."""

    def __init__(
        self,
        argv: Sequence[str],
        world: int,
        directory: Path,
        events: ProcessEvents,
        report: Callable[[str], None],
        incarnation: str = "",
        *,
        of_host: int | None = None,
        outputs: Outputs | None = None,
        keeps_states: bool = False,
    ) -> None:
        """Prepare; `open` listens. ``incarnation`` of this fabric-run: what a fence names.

        ``of_host``: ranks of each host; None: all of them. ``outputs``: where processes print;
        None: where this one does.

        ``keeps_states``: each process leaves its rank-local states in a ``state_memory``.
        """
        self._argv = list(argv)
        self._world = world
        self._of_host = of_host or world
        self._places = Places()
        self._path = directory / SOCKET
        self._events = events
        self._report = report
        self._incarnation = incarnation
        self._token = secrets.token_hex(16)
        self._memories: dict[str, int] | None = {} if keeps_states else None
        self._progress: dict[str, int] = {}
        """Process → memory in which it says how far it is."""
        self._server: asyncio.Server | None = None
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._childless = asyncio.Event()
        self._outputs = outputs
        self._killed: set[str] = set()
        self._parting: set[str] = set()
        """Processes that have said that they end, or that the job cannot go on."""
        self.statuses = ExitStatuses()

    async def open(self) -> None:
        """Listen for processes. Raises ``OSError``."""
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        self._path.chmod(0o600)

    @property
    def alive(self) -> list[str]:
        """Processes that are not gone yet."""
        return list(self._children)

    @property
    def connected(self) -> list[str]:
        """Processes that have said hello and are connected."""
        return list(self._writers)

    def spawn(self, process: str) -> None:
        """Start ``process``. Raises ``OSError``."""
        environment = {
            **environment_of(os.environ, self._world, self._of_host, self._places.enter(process)),
            **({"FABRIC_INCARNATION": self._incarnation} if self._incarnation else {}),
            "FABRIC_TRAIN_SOCKET": str(self._path),
            "FABRIC_TRAIN_PROCESS": process,
            "FABRIC_TRAIN_TOKEN": self._token,
            "FABRIC_TRAIN_MEMORY": "",
        }
        self._progress[process] = counts = progress_memory.create(process)
        environment[progress_memory.VARIABLE] = str(counts)
        passed = [counts]
        if self._memories is not None:
            self._memories[process] = memory = state_memory.create(process)
            environment["FABRIC_TRAIN_MEMORY"] = str(memory)
            passed.append(memory)
        if self._outputs is None:
            child = subprocess.Popen(self._argv, env=environment, pass_fds=passed)
        else:
            child = self._spawn_piped(process, environment, passed, self._outputs)
        self._childless.clear()
        self._children[process] = child
        pidfd = os.pidfd_open(child.pid)
        asyncio.get_running_loop().add_reader(pidfd, self._exited, process, child, pidfd)

    def _spawn_piped(
        self, process: str, environment: dict[str, str], passed: list[int], outputs: Outputs
    ) -> subprocess.Popen[bytes]:
        # A pipe is no terminal: lines would wait in the process, and be lost with it.
        environment.setdefault("PYTHONUNBUFFERED", "1")
        out, error = outputs.open(process)
        try:
            return subprocess.Popen(
                self._argv, env=environment, pass_fds=passed, stdout=out, stderr=error
            )
        finally:
            outputs.started(process)

    def kill(self, process: str) -> None:
        """End ``process`` by SIGKILL, if it is alive."""
        child = self._children.get(process)
        if child is not None:
            self._killed.add(process)
            child.kill()

    def finished_by(self, process: str) -> progress_memory.Finished:
        """What ``process`` has finished so far."""
        memory, child = self._progress.get(process), self._children.get(process)
        if memory is None or child is None:
            return progress_memory.Finished(0, 0)
        return replace(progress_memory.read(memory), stopped=_is_stopped(child.pid))

    def states_of(self, process: str) -> list[state_memory.KeptState]:
        """The rank-local states that ``process``, alive or not, has left in its memory."""
        memory = (self._memories or {}).get(process)
        return [] if memory is None else list(state_memory.read(memory))

    def forget_states(self, process: str) -> None:
        """Give back the memory of ``process``."""
        memory = (self._memories or {}).pop(process, None)
        if memory is not None:
            os.close(memory)

    def assign(self, process: str, assignment: Assignment) -> None:
        """Send ``assignment`` to ``process``, with its place on this host if it has a rank."""
        if assignment.rank is not None:
            assignment = replace(assignment, local_rank=self._places.take(process))
        if self._outputs is not None:
            self._outputs.ranked(process, assignment.rank)
        self.send(process, assignment)

    def send(self, process: str, message: Message) -> None:
        """Send to ``process``, if it is connected."""
        writer = self._writers.get(process)
        if writer is not None and not writer.is_closing():
            writer.write(encode(message))

    async def close(self, grace_s: float = _GRACE_S) -> None:
        """End all processes by SIGTERM, after ``grace_s`` by SIGKILL, and the socket."""
        if self._server is not None:
            self._server.close()
        if not self._children:
            self._childless.set()
        if grace_s > 0:
            self._terminate(self._children.keys() - self._parting)
            # What a process says last, and its exit status, tell people what was wrong.
            if self._parting.intersection(self._children):
                await self._wait_childless(PARTING_S)
                self._terminate(self._children.keys() & self._parting)
        await self._wait_childless(grace_s)
        for process in self._children:
            self.kill(process)
        if self._children:
            await self._childless.wait()
        if self._outputs is not None:
            await asyncio.to_thread(self._outputs.close)
        for process in list(self._memories or ()):
            self.forget_states(process)
        self._path.unlink(missing_ok=True)

    def was_killed(self, process: str) -> bool:
        """This fabric-run has ended ``process``, which is just gone."""
        return process in self._killed

    def _terminate(self, processes: Collection[str]) -> None:
        for process in processes:
            self._killed.add(process)
            self._children[process].terminate()

    async def _wait_childless(self, limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._childless.wait(), limit_s)

    def _exited(self, process: str, child: subprocess.Popen[bytes], pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        code = child.wait()
        self._places.leave(process)
        if self._outputs is not None:
            self._outputs.ended(process)
        if process not in self._killed:
            self.statuses.ended(code, time.monotonic())
        self._parting.discard(process)
        self._children.pop(process, None)
        os.close(self._progress.pop(process))
        writer = self._writers.pop(process, None)
        if writer is not None:
            writer.close()
        self._events.exited(process, code)
        self._killed.discard(process)
        if not self._children:
            self._childless.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = Decoder()
        process: str | None = None
        try:
            while data := await reader.read(1 << 16):
                for message in decoder.feed(data):
                    if process is None:
                        process = self._greet(message, writer)
                    else:
                        self._note(process, message)
                        self._events.received(process, message)
        except MessageError as error:
            self._report(f"process {process or '(not greeted)'}: {error}")
            with contextlib.suppress(ConnectionError):
                writer.write(encode(Refused(str(error)[:500])))
        except ConnectionError:
            pass
        finally:
            writer.close()
            if process is not None:
                self._events.disconnected(process)

    def _note(self, process: str, message: Message) -> None:
        if isinstance(message, Ending | Failed):
            self._parting.add(process)
        if isinstance(message, Ending):
            self._places.leave(process)
        elif isinstance(message, Protected) and message.layout == LATE:
            self._places.wait(process)

    def _greet(self, message: Message, writer: asyncio.StreamWriter) -> str:
        if not isinstance(message, Hello):
            raise MessageError("the first message has to be hello")
        if message.version != VERSION:
            raise MessageError(f"version {message.version} of the messages: this is {VERSION}")
        if not secrets.compare_digest(message.token.encode(), self._token.encode()):
            raise MessageError("hello without the token of this job")
        if message.process in self._writers or message.process not in self._children:
            raise MessageError(f"{message.process} is no process of this job, or here already")
        self._writers[message.process] = writer
        self._events.joined(message.process, message.software)
        return message.process


def _is_stopped(pid: int) -> bool:
    """By a signal, not by a debugger. Source: proc(5), the field after the command in stat."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[:1] == [b"T"]


def how_ended(code: int) -> str:
    """In words, for people: how a process ended that left before its job had."""
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}
        return f"killed by {known.get(-code, f'signal {-code}')}"
    return f"exited with status {code}" if code else "left before the job had ended"


def python(script: str, args: Sequence[str]) -> list[str]:
    """Command line of one process of the job."""
    return [sys.executable, script, *args]
