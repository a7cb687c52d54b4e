"""The broker of ``fabric-compute broker``, as a site has it: TLS, access list, limits."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.node import REPO
from lab.services.mosquitto import free_port
from telemetry.broker.settings import BrokerSettings

ISSUED_AT_ONCE = 250
"""Hosts on one command line."""
START_S, STOP_S = 60.0, 60.0


class TlsBroker:
    """One broker, its authority, and the certificates of its clients, below ``directory``."""

    def __init__(self, directory: Path) -> None:
        # mosquitto leaves root behind: it has to reach its own files.
        directory.mkdir(mode=0o755, exist_ok=True)
        self.directory, self.port = directory, free_port()
        self._process: subprocess.Popen[Any] | None = None

    @property
    def pid(self) -> int:
        """Of the running broker."""
        assert self._process is not None
        return self._process.pid

    @property
    def settings_lines(self) -> str:
        """``[broker]`` of a fabric-compute c0."""
        one = self.settings("c0")
        return (
            f'host = "{one.host}"\nport = {one.port}\nca_file = "{one.ca_file}"\n'
            f'cert_file = "{one.cert_file}"\nkey_file = "{one.key_file}"\n'
        )

    def settings(self, name: str, *, keepalive_s: int = 60) -> BrokerSettings:
        """How the client of this name connects."""
        return settings_of(self.directory, self.port, name, keepalive_s=keepalive_s)

    def issue(self, hosts: Sequence[str]) -> None:
        """Certificates for these hosts, and for a fabric-compute c0."""
        self._certificates("issue", "c0", "--role", "compute", "--out", self._clients)
        for first in range(0, len(hosts), ISSUED_AT_ONCE):
            names = hosts[first : first + ISSUED_AT_ONCE]
            self._certificates("issue", *names, "--role", "host", "--out", self._clients)

    def revoke(self, name: str) -> None:
        """As an operator does. Raises ``CalledProcessError``."""
        self._certificates("revoke", name)

    @property
    def _clients(self) -> str:
        return str(self.directory / "clients")

    def _certificates(self, *words: str) -> None:
        command = self._words("certificates", *words)
        subprocess.run(command, cwd=REPO, check=True, capture_output=True)

    def _words(self, *words: str) -> list[str]:
        place = ("--dir", str(self.directory), "--authority", str(self.directory / "authority"))
        return [sys.executable, "-m", "compute", *words, *place]

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        with (self.directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._words(
                    "broker", "--listen", f"127.0.0.1:{self.port}", "--name", "127.0.0.1"
                ),
                cwd=REPO, stdout=log, stderr=log,
            )  # fmt: skip
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            time.sleep(0.02)
        raise RuntimeError(f"the broker does not start: {self.log()[-2000:]}")

    def log(self) -> str:
        """What it has said so far."""
        return (self.directory / "broker.log").read_text()

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def settings_of(directory: Path, port: int, name: str, *, keepalive_s: int = 60) -> BrokerSettings:
    """How a client connects to the broker in ``directory``."""
    clients = directory / "clients"
    return BrokerSettings(
        "127.0.0.1", port, ca_file=clients / "ca.pem", cert_file=clients / f"{name}.pem",
        key_file=clients / f"{name}.key", keepalive_s=keepalive_s,
    )  # fmt: skip
