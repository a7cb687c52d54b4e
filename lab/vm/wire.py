"""The host's ends of a machine's two sockets: QEMU's monitor (QMP) and the guest's agent."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast


class VmError(RuntimeError):
    """A machine did not boot, died, or refused what it was told."""


def connect(path: Path, deadline: float) -> socket.socket:
    """Connect to a Unix socket that may not exist yet; ``deadline`` is of ``time.monotonic``."""
    while True:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(str(path))
        except OSError as err:
            sock.close()
            if time.monotonic() > deadline:
                raise VmError(f"{path} did not appear: {err}") from err
            time.sleep(0.02)
        else:
            return sock


class Monitor:
    """QMP client: one command at a time, events skipped."""

    def __init__(self, path: Path, deadline: float) -> None:
        self._sock = connect(path, deadline)
        self._sock.settimeout(30)
        self._file = self._sock.makefile("rb")
        self._lock = threading.Lock()
        self._file.readline()  # greeting
        self.call("qmp_capabilities")

    def call(self, command: str, **arguments: str | int | bool) -> object:
        """Run one command and return its ``return``; raises ``VmError`` on error or hang-up."""
        with self._lock:
            message = {"execute": command, "arguments": arguments}
            self._sock.sendall(json.dumps(message).encode() + b"\n")
            while line := self._file.readline():
                answer = json.loads(line)
                if "error" in answer:
                    raise VmError(f"{command}: {answer['error'].get('desc')}")
                if "return" in answer:
                    return cast("object", answer["return"])
        raise VmError(f"{command}: the machine has gone")

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._sock.close()


@dataclass(frozen=True, slots=True)
class Result:
    """What a command in the guest did."""

    argv: tuple[str, ...]
    rc: int
    out: str
    err: str
    began_ns: int = 0
    """CLOCK_MONOTONIC of the guest right before the command was started."""
    ended_ns: int = 0
    """The same, when it had ended."""

    def check(self) -> Result:
        """Itself when the status is 0, else ``VmError`` with both outputs' ends."""
        if self.rc != 0:
            raise VmError(
                f"{' '.join(self.argv)}: status {self.rc}\n{self.out[-4000:]}\n{self.err[-4000:]}"
            )
        return self


class Agent:
    """Client of ``guest/agent.py``; any number of requests at once.

    ``last_words``: what the guest wrote to its console, for the error of requests that it took
    along when it died.
    """

    def __init__(
        self, path: Path, deadline: float, last_words: Callable[[], str] = lambda: ""
    ) -> None:
        self._last_words = last_words
        self._sock = connect(path, deadline)
        self._ids: Iterator[int] = itertools.count(1)
        self._lock = threading.Lock()
        self._pending: dict[int, Future[dict[str, Any]]] = {0: Future()}
        self._hello = self._pending[0]
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_hello(self, timeout: float) -> str:
        """Wait for the guest's agent; returns its Python version."""
        return str(self._hello.result(timeout)["hello"])

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._sock.makefile("rb") as file:
            for line in file:
                answer = json.loads(line)
                with self._lock:
                    future = self._pending.pop(int(answer["id"]), None)
                if future is not None:
                    future.set_result(answer)
        with self._lock:
            lost = list(self._pending.values())
            self._pending.clear()
        words = self._last_words() if lost else ""
        for future in lost:
            future.set_exception(VmError(f"the guest's agent has gone\n{words}"))

    def request(self, op: str, **fields: object) -> tuple[int, Future[dict[str, Any]]]:
        """Send a request; returns its id and the future of its answer."""
        number = next(self._ids)
        future: Future[dict[str, Any]] = Future()
        data = json.dumps({"id": number, "op": op, **fields}).encode() + b"\n"
        with self._lock:
            self._pending[number] = future
            self._sock.sendall(data)
        return number, future

    def write(self, path: str, data: bytes, mode: int) -> None:
        """Write a file in the guest."""
        encoded = base64.b64encode(zlib.compress(data, 1)).decode()
        _, future = self.request("write", path=path, zlib64=encoded, mode=mode)
        answer = future.result(300)
        if answer["rc"] != 0:
            raise VmError(f"write {path}: {answer.get('err')}")

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC of the guest."""
        return int(self.request("clock")[1].result(60)["t_ns"])

    def ask(self, path: str, line: str) -> str:
        """Send a line to a Unix socket in the guest; returns the line that it answers."""
        _, future = self.request("ask", path=path, line=line)
        answer = future.result(60)
        if answer["rc"] != 0:
            raise VmError(f"{path}: {answer.get('err')}")
        return str(answer["out"])

    def close(self) -> None:
        """Close the connection; what is pending fails with ``VmError``."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._reader.join(5)


class Job:
    """A command that runs in the guest while the host goes on."""

    def __init__(self, agent: Agent, argv: tuple[str, ...], timeout: float, stdin: str) -> None:
        self._agent, self._argv, self._timeout = agent, argv, timeout
        self._id, self._future = agent.request("run", argv=list(argv), timeout=timeout, stdin=stdin)

    def wait(self) -> Result:
        """Wait for its end. Its time limit is kept by the guest; a lost guest raises."""
        answer = self._future.result(self._timeout + 60)
        began, ended = answer.get("t_ns", (0, 0))
        return Result(
            self._argv, answer["rc"], answer.get("out", ""), answer.get("err", ""), began, ended
        )

    @property
    def running(self) -> bool:
        """Whether its end has not been reported."""
        return not self._future.done()

    def kill(self) -> Result:
        """Kill its process group and wait."""
        self._agent.request("kill", target=self._id)[1].result(60)
        return self.wait()
