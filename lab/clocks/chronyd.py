"""A real chronyd on a host of a lab, with a refclock for fabric-clock. It only measures.

``-x``: it touches no clock. The reference is ``noselect``, for what it says of a clock that it
believes to correct would be less than it measured.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from lab.clocks.grandmaster import UNPACKED
from lab.node import Node

CHRONYD = str(UNPACKED / "usr/sbin/chronyd")
CHRONYC = str(UNPACKED / "usr/bin/chronyc")
"""``./run`` puts them there: they are not installed."""


def start(node: Node, config: Path, log: TextIO) -> subprocess.Popen[Any]:
    """One that only measures."""
    command = [CHRONYD, "-x", "-d", "-u", "root", "-f", str(config)]
    return node.popen(command, stdout=log, stderr=subprocess.STDOUT)


def ask(node: Node, command_socket: Path, what: str) -> list[str]:
    """The fields of what chronyc says of the first source; one empty field: nothing."""
    command = [CHRONYC, "-h", str(command_socket), "-c", what]
    return node.run(command, check=False, timeout=10).stdout.strip().split(",")


class Refclock:
    """One that listens at a socket, as ``[clock] chrony_socket`` names it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._home: Path = node.dir / "refclock"
        self.socket = self._home / "fabric.sock"
        self._process: subprocess.Popen[Any] | None = None

    def __enter__(self) -> Self:
        self._home.mkdir(mode=0o750, exist_ok=True)
        config = self._home / "chrony.conf"
        config.write_text(
            f"refclock SOCK {self.socket} refid FABR poll 0 filter 4 noselect\n"
            f"pidfile {self._home}/chronyd.pid\nport 0\ncmdport 0\n"
            f"bindcmdaddress {self._home}/command.sock\n"
        )
        with (self._home / "chronyd.log").open("a") as log:
            self._process = start(self._node, config, log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def samples(self) -> int:
        """That its regression is made of."""
        fields = self._stats()
        return int(fields[1]) if fields else 0

    def offset_ns(self) -> tuple[float, float]:
        """By how much the system's clock is ahead of what it is told, and how that scatters.

        Raises:
            RuntimeError: it has no samples.
        """
        fields = self._stats()
        if not fields:
            raise RuntimeError("chronyd says nothing of its refclock")
        return float(fields[6]) * 1e9, float(fields[7]) * 1e9

    def _stats(self) -> list[str]:
        said = ask(self._node, self._home / "command.sock", "sourcestats")
        return said if len(said) > 7 else []
