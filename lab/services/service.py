"""Long-running programs of a host (daemon, prober): start, stop, restart after a crash.

Under systemd each is a unit; this small supervisor exists only in the lab.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.lifecycle import procs

BACKOFF_S = 0.2


class Service:
    """One program in one namespace; stdout and stderr are appended to ``log``."""

    def __init__(
        self,
        ns: str,
        name: str,
        args: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        pid_dir: Path,
        restart: bool,
        forbidden: Callable[[], bool],
    ) -> None:
        self.name = name
        self.args = list(args)
        self.log = log
        self.restart = restart
        self.starts = 0
        self.exits: list[int] = []
        """Exit statuses in order; negative is a signal."""
        self._ns, self._env, self._pid_dir = ns, dict(env), pid_dir
        self._forbidden = forbidden
        self._lock = threading.Lock()
        self._stopping = False
        self._process: subprocess.Popen[Any] | None = None
        self._watcher: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """Of the running process, or None."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def running(self) -> bool:
        """Whether the process runs now."""
        return self.pid is not None

    def start(self) -> None:
        """Start it and watch over it."""
        assert self._watcher is None or not self._watcher.is_alive(), f"{self.name} is started"
        self._stopping = False
        self._launch()
        self._watcher = threading.Thread(target=self._watch, name=f"watch {self.name}", daemon=True)
        self._watcher.start()

    def _launch(self) -> None:
        with self._lock, self.log.open("ab") as log:
            if self._stopping:
                return
            self._process = procs.popen(
                self._ns, self.args, pid_dir=self._pid_dir, env=self._env, stdout=log, stderr=log
            )
            self.starts += 1

    def _watch(self) -> None:
        while True:
            process = self._process
            assert process is not None
            self.exits.append(process.wait())
            if self._stopping or not self.restart:
                return
            time.sleep(BACKOFF_S)
            while self._forbidden() and not self._stopping:
                time.sleep(0.02)
            if self._stopping:
                return
            self._launch()

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Send a signal to the process; its pid.

        Raises:
            ProcessLookupError: it does not run.
        """
        process = self._process
        if process is None or process.poll() is not None:
            raise ProcessLookupError(f"{self.name} does not run")
        process.send_signal(number)
        return process.pid

    def stop(self, grace_s: float = 3.0) -> int | None:
        """SIGTERM, then SIGKILL after ``grace_s``; the exit status, None if it never ran."""
        self._stopping = True
        with self._lock:
            process = self._process
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            # Frozen with its children, it could not act on it; it leads a session of its own.
            with contextlib.suppress(ProcessLookupError):  # gone at once, and reaped by _watch
                os.killpg(process.pid, signal.SIGCONT)
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._watcher is not None:
            self._watcher.join(2.0)
        return process.returncode

    def wait_restarted(self, old_pid: int, timeout_s: float = 5.0) -> int:
        """Block until another process than ``old_pid`` runs; its pid."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            pid = self.pid
            if pid is not None and pid != old_pid:
                return pid
            time.sleep(0.01)
        raise TimeoutError(f"{self.name} was not restarted within {timeout_s} s")
