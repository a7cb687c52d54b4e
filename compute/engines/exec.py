"""The ``exec`` engine: runs a command of the site for each action, one at a time.

The command gets one JSON object on stdin: ``{"version": 1, "id", "kind", "fields", "compute"}``.
Exit status 0: done. 65 (EX_DATAERR): refused, never again. Any other, a signal or a time-out: not
known, tried again with growing pauses, ``attempts`` times in all. So a command has to be idempotent
by ``id``. What is not done yet is in the store, and goes on after a restart. Each run becomes an
entry ``exec`` of the ledger, with its result and the end of its output.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import Counter
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from compute.engines.base import Decided
from compute.store import NewRecord, StoreError

VERSION = 1
EX_DATAERR = 65
RESULTS = ("done", "refused", "failed", "timeout", "given_up")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
OUTPUT_BYTES = 2000
KILL_S = 2.0


class CommandStore(Protocol):
    """Where commands wait; ``compute.store.Store`` is one. Methods may raise ``StoreError``."""

    def pending_commands(self) -> list[tuple[str, dict[str, Any], int]]:
        """(id, data, attempts so far), oldest first."""

    def count_attempt(self, name: str) -> None:
        """It is about to be run."""

    def note_command(self, name: str, record: NewRecord, *, over: bool) -> None:
        """A run has ended. ``over``: it is never run again."""


@dataclass(frozen=True)
class Outcome:
    """How one run of the command ended. ``result`` is one of ``RESULTS``."""

    result: str
    detail: str


class ExecEngine:
    """Runs the site's command.

    Attributes:
        results: runs by result.
    """

    name = "exec"

    def __init__(
        self,
        command: tuple[str, ...],
        store: CommandStore,
        compute: str,
        *,
        timeout_s: float,
        attempts: int,
        pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        """``compute``: the name of this fabric-compute, for the command."""
        self.results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))
        self._command, self._store, self._compute = command, store, compute
        self._timeout_s, self._attempts, self._pause_s = timeout_s, attempts, pause_s
        self._paused = False
        self._due: dict[str, float] = {}
        """Id → when it may be tried again, in seconds of the event loop."""
        self._wake = asyncio.Event()
        self._log = structlog.get_logger()

    def apply(self, decided: Decided) -> None:
        """The actions are in the store already: look there."""
        if decided.actions:
            self._wake.set()

    def pause(self, paused: bool) -> None:
        """While paused no command is begun."""
        self._paused = paused
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            waiting = [] if self._paused else await asyncio.to_thread(self._pending)
            due = {name: self._due.get(name, 0.0) for name, _, _ in waiting}
            ready = [one for one in waiting if due[one[0]] <= loop.time()]
            if ready:
                await self._carry_out(*ready[0])
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(due.values(), default=None)):
                    await self._wake.wait()

    def _pending(self) -> list[tuple[str, dict[str, Any], int]]:
        try:
            return self._store.pending_commands()
        except StoreError as error:
            self._log.error("the commands that wait cannot be read", error=str(error))
            return []

    async def _carry_out(self, name: str, data: dict[str, Any], attempts: int) -> None:
        pause = min(LONGEST_PAUSE_S, self._pause_s * 2 ** min(attempts, 16))
        self._due[name] = asyncio.get_running_loop().time() + pause
        try:
            await asyncio.to_thread(self._store.count_attempt, name)
            document = {"version": VERSION, "id": name, "compute": self._compute, **data}
            began = asyncio.get_running_loop().time()
            outcome = await run_command(self._command, document, self._timeout_s)
            seconds = asyncio.get_running_loop().time() - began
            over = self._is_over(name, outcome, attempts + 1)
            fields = {
                "id": name, "on": data.get("kind", ""), "attempt": attempts + 1, "over": over,
                "result": outcome.result, "output": outcome.detail, "seconds": round(seconds, 3),
            }  # fmt: skip
            if isinstance(about := data.get("fields"), dict):
                fields |= {key: about[key] for key in ("job", "host") if key in about}
            record = NewRecord("exec", fields)
            await asyncio.to_thread(self._store.note_command, name, record, over=over)
            if over:
                del self._due[name]
        except StoreError as error:
            self._log.error("a command cannot be noted", id=name, error=str(error))

    def _is_over(self, name: str, outcome: Outcome, attempts: int) -> bool:
        self.results[outcome.result] += 1
        log = self._log.bind(id=name, attempt=attempts, detail=outcome.detail)
        if outcome.result == "done":
            log.info("the site's command has done it")
            return True
        if outcome.result == "refused":
            log.error("the site's command refuses it")
            return True
        if attempts >= self._attempts:
            self.results["given_up"] += 1
            log.error("the site's command is given up", result=outcome.result)
            return True
        log.warning("the site's command is tried again", result=outcome.result)
        return False


async def run_command(
    command: tuple[str, ...], document: dict[str, Any], timeout_s: float
) -> Outcome:
    """Run ``command`` with ``document`` on its stdin, in a process group of its own.

    Past ``timeout_s`` the whole group is killed. The end of its output, ``OUTPUT_BYTES`` at most,
    becomes the detail.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return Outcome("failed", f"{command[0]}: {error.strerror}")
    tail = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            line = json.dumps(document).encode() + b"\n"
            await asyncio.gather(_feed(process, line), _read(process, tail))
            await process.wait()
    except TimeoutError:
        await _end(process)
        how, said = f"no end within {timeout_s:g} s", _text(tail)
        return Outcome("timeout", f"{how}: {said}" if said else how)
    except BaseException:
        await _end(process)
        raise
    said = _text(tail)
    if process.returncode == 0:
        return Outcome("done", said)
    if process.returncode == EX_DATAERR:
        return Outcome("refused", said or "no reason given")
    code = process.returncode or 0
    how = f"signal {-code}" if code < 0 else f"exit status {code}"
    return Outcome("failed", f"{how}: {said}" if said else how)


async def _feed(process: asyncio.subprocess.Process, line: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # It does not read it.
        process.stdin.write(line)
        await process.stdin.drain()
    process.stdin.close()


async def _read(process: asyncio.subprocess.Process, tail: bytearray) -> None:
    """Read all output, and keep its end."""
    assert process.stdout is not None
    while chunk := await process.stdout.read(1 << 16):
        tail += chunk
        del tail[:-OUTPUT_BYTES]


def _text(tail: bytearray) -> str:
    return tail.decode(errors="replace").strip()


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KILL_S):
            await process.wait()
