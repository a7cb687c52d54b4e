"""``fabricctl support-bundle``: one .tar.gz with what a support case needs, secrets removed.

Everything goes through `Bundle.add` or `Bundle.add_json`, and these redact: there is no other way
into the archive. What cannot be had (no daemon, no tool, no right) is named in manifest.json.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import socket
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

from fabricd.cli import client
from fabricd.config.files import DIRECTORY
from fabricd.config.loader import Config, ConfigError, files_of, load
from fabricd.doctor.checks import run as run_checks
from fabricd.doctor.gather import GatherOptions, gather
from fabricd.doctor.machine import ThisMachine
from fabricd.doctor.tree import Tree
from fabricd.support import facts
from fabricd.support.redact import Redactor
from fabricd.support.state import read_as_owner
from telemetry.listen import DEFAULT_LISTEN, parse_listen

MAX_FILE = 8 * 1024 * 1024
METRICS_S = 10.0
_OPERATIONS: dict[str, dict[str, Any]] = {
    "status": {}, "links": {}, "config": {}, "jobs": {}, "observations": {}, "training_jobs": {},
    "migrations": {"limit": 1000},
}  # fmt: skip
"""What the daemon is asked, with the rest of each request."""


class Bundle:
    """An archive in the making."""

    def __init__(self, root: str, redactor: Redactor) -> None:
        """Args: ``root`` is the directory inside the archive."""
        self.missing: dict[str, str] = {}
        self.names: list[str] = []
        self._root = root
        self._redactor = redactor
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w:gz")  # noqa: SIM115

    def add(self, name: str, text: str) -> None:
        """A text, redacted; what is too long loses its beginning."""
        text = self._redactor.text(text)
        if len(text) > MAX_FILE:
            text = f"(the first {len(text) - MAX_FILE} characters are left out)\n{text[-MAX_FILE:]}"
        self._put(self._redactor.text(name), text.encode("utf-8", "replace"))

    def add_json(self, name: str, document: Any) -> None:  # noqa: ANN401
        """A JSON document, redacted by its names too."""
        text = json.dumps(self._redactor.document(document), indent=1, default=str)
        self._put(self._redactor.text(name), text.encode())

    def add_lines(self, name: str, documents: list[Any]) -> None:
        """JSON lines, redacted by their names too."""
        lines = [json.dumps(self._redactor.document(item), default=str) for item in documents]
        self._put(name, "\n".join(lines).encode()[-MAX_FILE:])

    def lack(self, name: str, why: str) -> None:
        """Note what cannot be had."""
        self.missing[name] = self._redactor.text(why)

    def finish(self) -> bytes:
        """The archive; its manifest last."""
        manifest = {
            "made_wall_s": time.time(),
            "versions": facts.versions(),
            "files": self.names,
            "missing": self.missing,
            "redactions": self._redactor.count,
        }
        self.add_json("manifest.json", manifest)
        self._tar.close()
        return self._buffer.getvalue()

    def _put(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(f"{self._root}/{name}")
        info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
        self._tar.addfile(info, io.BytesIO(data))
        self.names.append(name)


def collect(socket: Path, file: Path, since_ns: int, root: str) -> bytes:
    """Gather everything.

    Args:
        socket: the daemon's.
        file: the main configuration file, for when the daemon does not answer, and its text.
        since_ns: where the excerpt of the timeline begins, CLOCK_REALTIME.
        root: the directory inside the archive.
    """
    config, why = _config(file)
    bundle = Bundle(root, Redactor(_keys(config)))
    if why:
        bundle.lack("config", why)
    _config_files(bundle, file)
    links = _daemon(bundle, socket) or ([x.netdev for x in config.links] if config else [])
    _state(bundle, config, since_ns)
    _metrics(bundle, config)
    _doctor(bundle, file)
    for name, text in (*facts.kernel(), *facts.commands()):
        bundle.add(name, text)
    for netdev in links:
        for name, text in facts.netdev(netdev):
            bundle.add(name, text)
    return bundle.finish()


def write(path: Path, data: bytes) -> None:
    """Write the archive for its owner's eyes; never over a file that is there.

    Raises:
        OSError: it is there already, or cannot be written.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as out:
        out.write(data)


def _config(file: Path) -> tuple[Config | None, str]:
    """The configuration, as far as it can be used, and why it is refused."""
    try:
        return load(file), ""
    except ConfigError as error:
        why = str(error)
    with contextlib.suppress(ConfigError):
        return load(file, shared_peers=False), why
    return None, why


def _keys(config: Config | None) -> list[str]:
    """The probe keys, where they may be read: what they are is not to be found in the archive."""
    path = Path(config.probe.key_file if config else "/etc/fabricd/probe.key")
    text = facts.read(path)
    return [] if text.startswith(facts.NOT_READ) else text.split()


def _config_files(bundle: Bundle, file: Path) -> None:
    try:
        names = files_of(file)
    except OSError as error:
        bundle.lack("config/conf.d", str(error.strerror))
        names = [str(file)]
    for name in names:
        path = Path(name)
        folder = "conf.d/" if path.parent == file.parent / DIRECTORY else ""
        if name != str(file) and not folder:
            folder = "peers_file/"
        bundle.add(f"config/{folder}{path.name}", facts.read(path))


def _daemon(bundle: Bundle, socket: Path) -> list[str]:
    """What the daemon says of itself; returns its links."""
    names: list[str] = []
    for op, more in _OPERATIONS.items():
        try:
            answer = client.request(socket, {"op": op} | more)
        except (client.DaemonError, OSError) as error:
            bundle.lack(f"daemon/{op}.json", str(error))
            continue
        bundle.add_json(f"daemon/{op}.json", answer)
        if op == "links":
            names = [link["netdev"] for link in answer]
    for netdev in names:
        try:
            answer = client.request(socket, {"op": "explain", "link": netdev})
            bundle.add_json(f"daemon/explain-{netdev}.json", answer)
        except (client.DaemonError, OSError) as error:
            bundle.lack(f"daemon/explain-{netdev}.json", str(error))
    return names


def _state(bundle: Bundle, config: Config | None, since_ns: int) -> None:
    directory = Path(config.paths.state_dir if config else "/var/lib/fabricd")
    found = read_as_owner(directory, since_ns)
    for name, text in found.files.items():
        bundle.add(f"state/{name}", text)
    for name, why in found.missing.items():
        bundle.lack(name, why)
    if "timeline.jsonl" not in found.missing:
        bundle.add_lines("timeline.jsonl", found.rows)
        bundle.add_json("state/flap-totals.json", found.flap_totals)


def _doctor(bundle: Bundle, file: Path) -> None:
    """What `fabricctl doctor --json` says here, as root or whoever makes the bundle."""
    facts_of_host = gather(Tree(), ThisMachine(), GatherOptions(file))
    report = run_checks(facts_of_host).document() | {"facts": facts_of_host.document()}
    bundle.add_json("doctor.json", report)


def _metrics(bundle: Bundle, config: Config | None) -> None:
    listen = config.metrics.listen if config else DEFAULT_LISTEN
    if not listen:
        bundle.lack("metrics.txt", "there is no endpoint")
        return
    try:
        bundle.add("metrics.txt", fetch_metrics(listen))
    except (OSError, ValueError, http.client.HTTPException) as error:
        bundle.lack("metrics.txt", str(error))


def fetch_metrics(listen: str, limit_s: float = METRICS_S) -> str:
    """What the endpoint says; another process may have its port, so time and size are bounded.

    Raises:
        OSError, ValueError, http.client.HTTPException: nothing was said, or not in time.
    """
    address, port = parse_listen(listen)
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104
    end = time.monotonic() + limit_s
    with contextlib.closing(http.client.HTTPConnection(address, port, timeout=limit_s)) as asked:
        asked.connect()
        watch = threading.Timer(limit_s, _shut, (asked.sock,))
        watch.daemon = True
        watch.start()
        try:
            asked.request("GET", "/metrics")
            reply = asked.getresponse()
            data = reply.read(MAX_FILE)
        finally:
            watch.cancel()
    if time.monotonic() >= end:
        raise TimeoutError(f"no whole answer within {limit_s:g} s")
    if reply.status != http.HTTPStatus.OK:
        raise ValueError(f"status {reply.status}")
    return data.decode("utf-8", "replace")


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
