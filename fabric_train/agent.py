"""The shell around ``coordinator``: processes, their sockets, and the generations' store.

One agent serves the processes of one host. It runs no collective, so nothing that blocks a rank
blocks the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fabric_train.coordinator import (
    Announce,
    Coordinator,
    Effect,
    JobFailed,
    Kill,
    Phase,
    Refuse,
    ReleaseAll,
    Spawn,
)
from fabric_train.messages import (
    VERSION,
    Acknowledged,
    Assignment,
    Committed,
    Decoder,
    Failed,
    Finished,
    Hello,
    LocalState,
    LocalStateAnswer,
    LocalStateRequest,
    Message,
    MessageError,
    Protected,
    Recovered,
    Refused,
    Release,
    Stored,
    Suspect,
    Welcome,
    encode,
)

_GRACE_S = 10.0  # between SIGTERM and SIGKILL
_TICK_S = 0.2


class Agent:
    """Runs one job on this machine until it ends. ``report`` gets lines for people."""

    def __init__(
        self,
        coordinator: Coordinator,
        job: str,
        world: int,
        argv: Sequence[str],
        directory: Path,
        report: Callable[[str], None],
    ) -> None:
        self._coordinator = coordinator
        self._job = job
        self._world = world
        self._argv = list(argv)
        self._path = directory / "agent.sock"
        self._report = report
        self._token = secrets.token_hex(16)
        self._store: Any = None
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._spares: set[str] = set()
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._local_states: dict[int, dict[int, bytes]] = {}
        self._announced: Announce | None = None
        self._failure: str | None = None
        self._stopping = False
        self._ended = asyncio.Event()
        self._childless = asyncio.Event()

    async def run(self) -> str | None:
        """Run the job. Returns None when it ended well, else the reason; no process is left."""
        self._store = await asyncio.to_thread(_make_store)
        server = await asyncio.start_unix_server(self._serve, self._path)
        self._path.chmod(0o600)
        ticker = asyncio.create_task(self._tick())
        try:
            self._perform(self._coordinator.start())
            await self._ended.wait()
        finally:
            ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticker
            server.close()
            await self._end_children()
        return self._failure

    def stop(self, reason: str) -> None:
        """End the job; for signals."""
        self._stopping = True
        self._failure = self._failure or reason
        self._ended.set()

    def _slots(self) -> tuple[str, ...]:
        generation = self._coordinator.generation
        return generation.slots if generation else ()

    def _perform(self, effects: Sequence[Effect]) -> None:
        try:
            self._carry_out(effects)
        except Exception as error:  # a job half changed must not go on
            self.stop(f"fabric-run failed: {type(error).__name__}: {error}")

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Spawn():
                    self._spawn(effect)
                case Announce():
                    self._announce(effect)
                case Kill():
                    self._report(f"{effect.process} is killed: {effect.reason}")
                    self._kill(effect.process)
                case Refuse():
                    self._report(f"{effect.process} is refused: {effect.reason}")
                    self._send(effect.process, Refused(effect.reason))
                case ReleaseAll():
                    for process in list(self._writers):
                        self._send(process, Release())
                case JobFailed():
                    self.stop(effect.reason)

    def _spawn(self, spawn: Spawn) -> None:
        environment = {
            # As torchrun does: a thread for each core in each of many ranks is slower.
            **({"OMP_NUM_THREADS": "1"} if self._world > 1 else {}),
            **os.environ,
            "FABRIC_TRAIN_SOCKET": str(self._path),
            "FABRIC_TRAIN_PROCESS": spawn.process,
            "FABRIC_TRAIN_TOKEN": self._token,
        }
        child = subprocess.Popen(self._argv, env=environment)
        self._childless.clear()
        self._children[spawn.process] = child
        if spawn.spare:
            self._spares.add(spawn.process)
        pidfd = os.pidfd_open(child.pid)
        asyncio.get_running_loop().add_reader(pidfd, self._exited, spawn.process, child, pidfd)

    def _exited(self, process: str, child: subprocess.Popen[bytes], pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        code = child.wait()
        self._children.pop(process, None)
        writer = self._writers.pop(process, None)
        if writer is not None:
            writer.close()
        if self._coordinator.phase is Phase.ENDED:
            if code != 0 and process in self._slots():
                self._failure = self._failure or f"{process} {_how(code)} after its last step"
        elif not self._stopping:
            self._perform(self._coordinator.lost(process, _how(code), time.monotonic()))
            if held := ", ".join(map(str, self._coordinator.held_for)):
                self._report(f"held: no warm spare for rank {held}; {process} {_how(code)}")
        if not self._children:
            self._childless.set()
            if self._coordinator.phase is Phase.ENDED:
                self._ended.set()

    def _announce(self, announce: Announce) -> None:
        self._announced = announce
        number = announce.generation.number
        if not announce.formed:
            self._local_states.clear()  # those of an earlier start
        elif announce.lost:
            lost = ", ".join(map(str, announce.lost))
            self._report(f"generation {number}: rank {lost} is taken over")
        else:
            self._report(f"generation {number}: all ranks connect anew")
        for process in list(self._writers):
            self._send_assignment(process)

    def _send_assignment(self, process: str) -> None:
        announce = self._announced
        if announce is None:
            return
        generation = announce.generation
        self._send(
            process,
            Assignment(
                generation.number,
                generation.rank_of(process),
                generation.world,
                f"127.0.0.1:{self._store.port}",
            ),
        )

    def _kill(self, process: str) -> None:
        child = self._children.get(process)
        if child is not None:
            child.kill()

    def _send(self, process: str, message: Message) -> None:
        writer = self._writers.get(process)
        if writer is not None and not writer.is_closing():
            writer.write(encode(message))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = Decoder()
        process: str | None = None
        try:
            while data := await reader.read(1 << 16):
                for message in decoder.feed(data):
                    if process is None:
                        process = self._greet(message, writer)
                    else:
                        self._receive(process, message)
        except MessageError as error:
            self._report(f"process {process or '(not greeted)'}: {error}")
            with contextlib.suppress(ConnectionError):
                writer.write(encode(Refused(str(error)[:500])))
        except ConnectionError:
            pass
        finally:
            writer.close()
            if process is not None and self._coordinator.phase is not Phase.ENDED:
                self._kill(process)  # no assignment can reach it any more

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
        spare = message.process in self._spares
        self._send(message.process, Welcome(self._job, self._world, spare))
        self._perform(self._coordinator.joined(message.process, message.software))
        return message.process

    def _receive(self, process: str, message: Message) -> None:
        now = time.monotonic()
        core = self._coordinator
        match message:
            case Protected():
                if core.phase is Phase.FORMING:
                    self._report(f"{process} is protected: {message.report}")
                self._perform(core.protected(process, message.layout, now))
            case LocalState():
                if self._slots()[message.rank : message.rank + 1] != (process,):
                    return  # another process holds this rank now; an assignment is on its way
                states = self._local_states.setdefault(message.rank, {})
                states[message.step] = message.body
                for step in sorted(states)[:-2]:
                    del states[step]
                self._send(process, Stored(message.step))
            case LocalStateRequest():
                body = self._local_states.get(message.rank, {}).get(message.step)
                answer = LocalStateAnswer(message.rank, message.step, body is not None, body or b"")
                self._send(process, answer)
            case Acknowledged():
                core.acknowledged(process, message.generation)
            case Suspect():
                core.suspect(message.generation, now)
            case Recovered():
                self._perform(core.recovered(process, message.generation, message.step, now))
                self._report(f"{process} {message.role}: {message.spans_ms}")
            case Committed():
                core.committed(process, message.generation, message.step, now)
            case Failed():
                self._perform(core.given_up(process, message.reason))
            case Finished():
                self._perform(core.finished(process, message.step))
            case _:
                raise MessageError(f"{type(message).__name__} is nothing that a process says")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._perform(self._coordinator.expire(time.monotonic()))

    async def _end_children(self) -> None:
        if not self._children:
            self._childless.set()
        for child in self._children.values():
            child.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._childless.wait(), _GRACE_S)
        for child in self._children.values():
            child.kill()
        if self._children:
            await self._childless.wait()
        self._path.unlink(missing_ok=True)


def _make_store() -> Any:
    import torch.distributed as dist

    # By itself it would listen on every address of the machine.
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    return dist.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )  # fmt: skip


def _how(code: int) -> str:
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}
        return f"killed by {known.get(-code, f'signal {-code}')}"
    return f"exited with status {code}" if code else "left before the job had ended"


def python(script: str, args: Sequence[str]) -> list[str]:
    """Command line of one process of the job."""
    return [sys.executable, script, *args]
