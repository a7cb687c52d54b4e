"""What no file says: other tools' words, whether a device opens, what child processes find."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

TOOL_S = 10.0
CHILD_S = 30.0
KILL_S = 1.0
MAX_OUTPUT = 4 * 1024 * 1024
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"


class ToolError(Exception):
    """A tool is not installed, failed or took too long; the text says which."""


class Machine(Protocol):
    """The machine that is looked at; tests put recorded answers in its place."""

    def run(self, argv: Sequence[str]) -> str:
        """A tool's standard output; raises `ToolError`."""

    def open_node(self, path: Path) -> int:
        """The errno of opening a device for reading and writing; 0 when it opens."""

    def child(self, module: str, *args: str) -> dict[str, Any]:
        """What a module of ours prints as JSON in a process of its own; raises `ToolError`."""


@dataclass(frozen=True, slots=True)
class ThisMachine:
    """The machine that this process runs on."""

    def run(self, argv: Sequence[str]) -> str:
        """As of `Machine`."""
        return _output(argv, {"PATH": _PATH, "LC_ALL": "C"}, TOOL_S)

    def open_node(self, path: Path) -> int:
        """As of `Machine`. Opening a uverbs node makes no context and changes nothing."""
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def child(self, module: str, *args: str) -> dict[str, Any]:
        """As of `Machine`. A library that crashes or hangs takes the child alone with it."""
        packages = str(Path(__file__).parents[2])
        argv = [sys.executable, "-P", "-m", module, *args]
        text = _output(argv, {"PATH": _PATH, "PYTHONPATH": packages, "LC_ALL": "C"}, CHILD_S)
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            raise ToolError(f"{module} printed no JSON: {text[:80]!r}") from None
        if not isinstance(answer, dict):
            raise ToolError(f"{module} printed {text[:80]!r}, which is no JSON object")
        return answer


class AbsentMachine:
    """Stands for a machine whose files alone are at hand: a copied tree, another root."""

    def run(self, argv: Sequence[str]) -> str:
        """Raises `ToolError` always."""
        raise ToolError(f"{argv[0]} speaks of this machine, not of another root")

    def open_node(self, path: Path) -> int:  # noqa: ARG002 - the protocol's
        """No node can be opened there."""
        return errno.ENXIO

    def child(self, module: str, *args: str) -> dict[str, Any]:  # noqa: ARG002
        """Raises `ToolError` always."""
        raise ToolError(f"{module} asks this machine, not another root")


def _output(argv: Sequence[str], environment: Mapping[str, str], limit_s: float) -> str:
    try:
        # A file, not a pipe: what a tool starts may hold a pipe open for ever.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
                env=dict(environment), cwd="/",
            )  # fmt: skip
            status = _ended(process, limit_s)
            texts = []
            for file in (out, errors):
                file.seek(0)
                texts.append(file.read(MAX_OUTPUT).decode("utf-8", "replace"))
    except FileNotFoundError:
        raise ToolError(f"{argv[0]} is not installed") from None
    except OSError as error:
        raise ToolError(f"{argv[0]}: {error.strerror or error}") from error
    if status is None:
        raise ToolError(f"{argv[0]} did not end within {limit_s:g} s")
    if status < 0:
        raise ToolError(f"{argv[0]} was killed by signal {-status}")
    if status:
        reported = (texts[1].strip() or texts[0].strip()).splitlines()
        last = f": {reported[-1][:200]}" if reported else ""
        raise ToolError(f"{argv[0]} ended with {status}{last}")
    return texts[0]


def _ended(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """The exit status; None after the limit: killed, and not waited for if it hangs in a driver."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_S)
        return None
