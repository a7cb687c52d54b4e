"""Runs a command whose time and output are bounded, whatever it prints."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAX_ERRORS = 16 * 1024
"""Bytes of standard error that are kept."""
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command printed.

    Attributes:
        status: exit status; None when it was ended here.
        output: standard output.
        problem: why it cannot be trusted to be all; empty: it is.
        errors: the last line of standard error.
        missing: the command is not installed; ``problem`` says so, too.
    """

    status: int | None
    output: bytes
    problem: str = ""
    errors: str = ""
    missing: bool = False


def run(
    argv: Sequence[str],
    limit_s: float,
    limit_bytes: int,
    *,
    merged: bool = False,
    **options: Any,  # noqa: ANN401 - those of Popen
) -> CommandOutput:
    """Run a command to its end, its time or its bytes.

    What it started and left behind (ssh's master) is not waited for; after its time or its bytes
    its process group is killed.

    Args:
        argv: the command.
        limit_s: seconds.
        limit_bytes: of standard output; of errors it keeps the beginning.
        merged: standard error comes with the output, where it was printed.
        options: further ones of `subprocess.Popen`, such as ``env`` and ``user``.
    """
    try:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            start_new_session=True, **options,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        missing = isinstance(error, FileNotFoundError)
        return CommandOutput(None, b"", f"{argv[0]}: {why}", missing=missing)
    assert process.stdout is not None
    with process.stdout as out, process.stderr or contextlib.nullcontext() as errors:
        reader = _Reader(out.fileno(), errors.fileno() if errors else None, limit_bytes)
        problem = _followed(process, reader, limit_s)
    lines = [line for line in reader.errors.decode("utf-8", "replace").splitlines() if line.strip()]
    return CommandOutput(
        process.returncode, bytes(reader.output), problem, lines[-1] if lines else ""
    )


class _Reader:
    """Reads two pipes without waiting: the one to a limit, of the other the beginning."""

    def __init__(self, out: int, errors: int | None, limit: int) -> None:
        self.output = bytearray()
        self.errors = bytearray()
        self.limit = limit
        self._selector = selectors.DefaultSelector()
        for fd in (out,) if errors is None else (out, errors):
            os.set_blocking(fd, False)
            self._selector.register(fd, selectors.EVENT_READ)
        self._out = out

    @property
    def open(self) -> bool:
        """Whether a pipe may say more."""
        return bool(self._selector.get_map())

    @property
    def over(self) -> bool:
        """Whether there was more than the limit."""
        return len(self.output) > self.limit

    def read(self, wait_s: float) -> bool:
        """Read what is there; waits so long for something. Returns whether there was anything."""
        events = self._selector.select(wait_s)
        for key, _ in events:
            data = b""
            with contextlib.suppress(BlockingIOError):
                data = os.read(key.fd, 65536)
                if not data:
                    self._selector.unregister(key.fd)
            if key.fd == self._out:
                self.output += data
            elif len(self.errors) < MAX_ERRORS:
                self.errors += data
        return bool(events)

    def close(self) -> None:
        """Let go of the selector; the pipes are the caller's."""
        self._selector.close()


def _followed(process: subprocess.Popen[bytes], reader: _Reader, limit_s: float) -> str:
    """Read until the process has ended; returns why it was ended here, or nothing."""
    end = time.monotonic() + limit_s
    problem = ""
    try:
        while process.poll() is None and not problem:
            if reader.open:
                reader.read(_LOOK_S)
            else:
                time.sleep(_LOOK_S)
            if reader.over:
                problem = f"it printed more than {reader.limit} bytes"
            elif time.monotonic() > end:
                problem = f"it did not end within {limit_s:g} s"
        while reader.open and not problem and reader.read(0):
            if reader.over:
                problem = f"it printed more than {reader.limit} bytes"
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        reader.close()
    return problem
