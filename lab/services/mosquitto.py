"""A real mosquitto on loopback, for tests: starts, is killed, frozen, and starts again."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

START_S = 30.0
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 20_000  # above ports that services are known by, and tests


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses now.

    Below those that the kernel gives to connections: one of many clients of a broker would else
    take it before its service listens.
    """
    first = int(EPHEMERAL.read_text(encoding="ascii").split()[0])
    while True:
        port = random.randrange(LOWEST, first)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Mosquitto:
    """One broker. Its retained messages and sessions outlive ``kill`` in ``directory``."""

    def __init__(self, directory: Path, *, options: Sequence[str] = (), port: int = 0) -> None:
        """Args: ``options``: further lines of its configuration, e.g. for TLS or an ACL."""
        self.port = port or free_port()
        self.directory = directory
        self.log = directory / "mosquitto.log"
        directory.mkdir(parents=True, exist_ok=True)
        lines = [
            f"listener {self.port} 127.0.0.1",
            "persistence true",
            f"persistence_location {directory}/",
            # After each message: what the broker acknowledged survives its kill -9.
            "autosave_on_changes true",
            "autosave_interval 1",
            "max_queued_messages 0",
            "user root",
            *(options or ("allow_anonymous true",)),
        ]
        (directory / "mosquitto.conf").write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[Any] | None = None

    @property
    def pid(self) -> int:
        """Of the running broker."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program, "mosquitto is missing: lab/packages/base.txt"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [program, "-c", str(self.directory / "mosquitto.conf")], stdout=log, stderr=log
            )
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise RuntimeError(f"mosquitto does not start: {self.log.read_text()[-2000:]}")

    def signal(self, number: int) -> None:
        """Send it a signal: SIGSTOP makes a broker that accepts and never answers."""
        os.kill(self.pid, number)

    def has_stored(self, text: bytes) -> bool:
        """Whether its file has that, e.g. the id of a client with a persistent session."""
        try:
            return text in (self.directory / "mosquitto.db").read_bytes()
        except FileNotFoundError:
            return False

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it, whatever its state."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = None
