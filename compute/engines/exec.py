"""The ``exec`` engine: runs a command of the site for each action, one at a time.

The command gets one JSON object on stdin: ``{"version": 1, "id", "kind", "fields", "compute"}``.
Exit status 0: done. 65 (EX_DATAERR): refused, never again. Any other, a signal or a time-out: not
known, tried again with growing pauses, ``attempts`` times in all. So a command has to be idempotent
by ``id``. What is not done yet is in the store, and goes on after a restart.
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
from compute.store import StoreError

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

    def end_command(self, name: str) -> None:
        """It is never run again."""


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
            outcome = await run_command(self._command, document, self._timeout_s)
            if self._is_over(name, outcome, attempts + 1):
                await asyncio.to_thread(self._store.end_command, name)
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

    Past ``timeout_s`` the whole group is killed. The end of its output becomes the detail.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return Outcome("failed", f"{command[0]}: {error.strerror}")
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate(json.dumps(document).encode() + b"\n")
    except TimeoutError:
        await _end(process)
        return Outcome("timeout", f"no end within {timeout_s:g} s")
    except BaseException:
        await _end(process)
        raise
    said = output[-OUTPUT_BYTES:].decode(errors="replace").strip()
    if process.returncode == 0:
        return Outcome("done", said)
    if process.returncode == EX_DATAERR:
        return Outcome("refused", said or "no reason given")
    code = process.returncode or 0
    how = f"signal {-code}" if code < 0 else f"exit status {code}"
    return Outcome("failed", f"{how}: {said}" if said else how)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KILL_S):
            await process.wait()
