"""``python -m bench.attack.local_attackers KIND UID GID WORDS``: one attack of a local user.

It says ``ready`` once it is at work, goes on until its standard input ends, and then says as JSON
how often it did what.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from telemetry import statslayout as sl

HALF_SENT, UNREAD = 250, 50
"""Connections to the metrics port."""
CONTROL_CONNECTIONS, TIMELINES = 64, 12
JOB_CONNECTIONS = 32
PAUSE_S = 0.002
"""Between two tries of one thread: a core is not what is attacked."""
done: Counter[str] = Counter()


def _again(work: Callable[[], None], name: str) -> None:
    """Do it for ever, in a thread of its own."""

    def run() -> None:
        while True:
            try:
                work()
                done[name] += 1
            except OSError:
                done[f"{name}, refused"] += 1
                time.sleep(0.05)
            time.sleep(PAUSE_S)

    threading.Thread(target=run, daemon=True).start()


def metrics(port: str) -> None:
    """Half-sent requests that drip, and replies that nobody reads."""
    address = ("127.0.0.1", int(port))

    def half() -> None:
        with socket.create_connection(address, 5) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\nX-")
            for _ in range(100):
                time.sleep(0.5)
                sock.sendall(b"x")

    def unread() -> None:
        with socket.create_connection(address, 5) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 20)
            time.sleep(8.0)

    for _ in range(HALF_SENT):
        _again(half, "half-sent requests")
    for _ in range(UNREAD):
        _again(unread, "replies not read")


def odd_page() -> bytes:
    """The header of a page whose writer never rests."""
    values = {"magic": sl.MAGIC, "version": sl.VERSION, "header_size": sl.HEADER_SIZE, "seq": 3,
              "page_size": sl.PAGE_SIZE, "heartbeat_ns": time.monotonic_ns()}  # fmt: skip
    fields = [values.get(name, b"" if code.endswith("s") else 0) for name, code in sl.HEADER_FIELDS]
    return sl.codec(sl.HEADER_FIELDS).pack(*fields)


def pages(directory: str, count: str, names: str) -> None:
    """Pages that are torn for ever, and other names; then they change all the time."""
    os.chdir(directory)
    page = odd_page()
    for number in range(int(count)):
        with contextlib.suppress(OSError), Path(f"{number + 1}-{number + 1}.page").open("wb") as it:
            it.write(page)
            it.truncate(sl.PAGE_SIZE)
            done["pages"] += 1
    for number in range(int(names)):
        try:
            os.close(os.open(f"x{number}", os.O_CREAT | os.O_WRONLY))
        except OSError:
            done["other names, refused"] += 1
            break
        done["other names"] += 1
    turn = iter(range(1 << 60))

    def change() -> None:
        number = next(turn) % int(count) + 1
        name = f"{number}-{number}.page"
        with Path(name).open("r+b") as file:
            file.truncate(sl.HEADER_SIZE)
            file.write(odd_page())
            file.truncate(sl.PAGE_SIZE)
        Path(name).rename("moving")
        Path("moving").rename(name)

    _again(change, "changes of pages")


def squat(port: str, *addresses: str) -> None:
    """Bind the probe port of each rail, as soon as it is free."""

    def bind(address: str) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((address, int(port)))
            done["probe port taken"] += 1
            time.sleep(1.0)

    for address in addresses:
        _again(lambda address=address: bind(address), "probe port")  # type: ignore[misc]


def _unix(path: str, timeout_s: float = 30.0) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout_s)
    try:
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock


def control(path: str) -> None:
    """As many idle connections to the control socket as there are places."""

    def idle() -> None:
        with _unix(path, 600.0) as sock:
            done["control connections"] += 1
            sock.recv(1)

    for _ in range(CONTROL_CONNECTIONS):
        _again(idle, "control connections, ended")


def timelines(path: str) -> None:
    """The longest answers that the control socket gives, again and again."""

    def ask() -> None:
        with _unix(path) as sock:
            sock.sendall(b'{"op": "timeline", "limit": 100000}\n')
            while data := sock.recv(1 << 16):
                done["timeline bytes"] += len(data)
                if data.endswith(b"\n"):
                    return

    for _ in range(TIMELINES):
        _again(ask, "timelines")


def jobs(path: str) -> None:
    """Registrations, large documents, garbage, and connections that say nothing."""
    large = json.dumps({"kind": "document", "document": {"x": "y" * 400_000}}).encode() + b"\n"
    deep = b"[" * 19_000 + b"\n"

    def documents() -> None:
        with _unix(path) as sock:
            name = f"job-{threading.get_ident()}"
            line = {"kind": "register", "version": 1, "job": name, "incarnation": "i"}
            sock.sendall(json.dumps(line).encode() + b"\n")
            for _ in range(20):
                sock.sendall(large)
                done["documents"] += 1

    def garbage() -> None:
        with _unix(path) as sock:
            for _ in range(20):
                sock.sendall(deep)
                done["lines of garbage"] += 1

    def silent() -> None:
        with _unix(path) as sock:
            time.sleep(1.0)
            sock.sendall(b"\n")

    for number in range(JOB_CONNECTIONS):
        _again((documents, garbage, silent)[number % 3], "job connections")


KINDS: dict[str, Callable[..., None]] = {
    "metrics": metrics,
    "pages": pages,
    "squat": squat,
    "control": control,
    "timelines": timelines,
    "jobs": jobs,
}


def main() -> None:
    """Become the user, attack, and count."""
    kind, uid, gid, *words = sys.argv[1:]
    os.setgroups([])
    os.setgid(int(gid))
    os.setuid(int(uid))
    KINDS[kind](*words)
    print("ready", flush=True)
    sys.stdin.read()
    print(json.dumps(done), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
