"""A real Prometheus over a lab: it scrapes the daemons of all hosts, by the shipped rules.

A host's endpoint listens in the host's namespace, which Prometheus is not in. A `Relay` per host
listens here and connects there, byte for byte: a host that answers late, or not, does so to
Prometheus as well.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lab.lifecycle.registry import LabError
from lab.network import netns
from lab.node import REPO, Node

RULES = REPO / "deploy" / "prometheus" / "rules.yml"
START_S = 60.0
JOB = "fabricd"
"""The name of the scrape job that the rules expect."""

Series = dict[str, Any]
"""As Prometheus' HTTP API has it: ``metric`` (labels) and ``value`` or ``values``."""


class Relay:
    """Connections to a port here go on to an address in another network namespace."""

    def __init__(self, ns: str, address: tuple[str, int]) -> None:
        self._ns, self._address = ns, address
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name=f"relay {ns}", daemon=True).start()

    def close(self) -> None:
        """Accept no more; connections end with their scrape."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                there = netns.run_in(
                    self._ns, lambda: socket.create_connection(self._address, timeout=5)
                )
            except OSError:
                return  # Nobody listens there: the scrape fails, as it should.
            with there, suppress(OSError):
                _pump(client, there)


def _pump(one: socket.socket, other: socket.socket) -> None:
    """Until one of them closes."""
    with selectors.DefaultSelector() as ready:
        ready.register(one, selectors.EVENT_READ, other)
        ready.register(other, selectors.EVENT_READ, one)
        while True:
            for key, _ in ready.select():
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(1 << 16)
                if not data:
                    return
                key.data.sendall(data)


class Prometheus:
    """Debian's Prometheus on a free port; its targets are the hosts of a lab, by their names."""

    def __init__(
        self,
        nodes: Sequence[Node],
        where: Path,
        *,
        port: int,
        scrape_s: int = 1,
        evaluate_s: int = 15,
        rules: Path = RULES,
    ) -> None:
        """Args: ``where``: an empty directory; ``port``: of the hosts' endpoints on 127.0.0.1."""
        self._nodes, self._where, self._endpoint = nodes, where, port
        self._scrape_s, self._evaluate_s, self._rules = scrape_s, evaluate_s, rules
        self._stack = ExitStack()
        self._url = ""
        self._process: subprocess.Popen[Any]

    def __enter__(self) -> Self:
        with self._stack:
            relays = {n.name: Relay(n.ns, ("127.0.0.1", self._endpoint)) for n in self._nodes}
            for relay in relays.values():
                self._stack.callback(relay.close)
            config = {
                "global": {
                    "scrape_interval": f"{self._scrape_s}s",
                    "scrape_timeout": f"{min(10, self._scrape_s)}s",
                    "evaluation_interval": f"{self._evaluate_s}s",
                },
                "rule_files": [str(self._rules)],
                "scrape_configs": [
                    {
                        "job_name": JOB,
                        "static_configs": [
                            {"targets": [f"127.0.0.1:{r.port}"], "labels": {"instance": name}}
                            for name, r in relays.items()
                        ],
                    }
                ],
            }
            self._where.mkdir(parents=True, exist_ok=True)
            file = self._where / "prometheus.yml"  # JSON is YAML
            file.write_text(json.dumps(config))
            own = _free_port()
            self._url = f"http://127.0.0.1:{own}"
            log = self._stack.enter_context((self._where / "prometheus.log").open("w"))
            self._process = subprocess.Popen(
                [
                    "prometheus", f"--config.file={file}", f"--web.listen-address=127.0.0.1:{own}",
                    f"--storage.tsdb.path={self._where / 'data'}",
                ],
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
            self._stack.callback(self._end)
            self._wait_ready()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """The result of an instant query.

        Args:
            expression: PromQL.
            at: Unix time; None: now.
        """
        arguments = {"query": expression} | ({} if at is None else {"time": repr(at)})
        answer = self._get("/api/v1/query", arguments)
        return list(answer["data"]["result"])

    def alerts(self) -> list[dict[str, Any]]:
        """All alerts that are pending or firing."""
        return list(self._get("/api/v1/alerts", {})["data"]["alerts"])

    def _get(self, path: str, arguments: dict[str, str]) -> Any:  # noqa: ANN401 - JSON
        url = f"{self._url}{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=60) as reply:
            return json.load(reply)

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            with suppress(OSError), urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = (self._where / "prometheus.log").read_text()
                raise LabError(f"Prometheus does not start: {log[-2000:]}")
            time.sleep(0.1)

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        return int(made.getsockname()[1])
