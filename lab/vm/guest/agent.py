#!/usr/bin/python3
"""The guest's side: runs commands for the host over a virtio-serial port.

One JSON object a line both ways; requests run concurrently, answers carry the request's id:
``{"id", "op": "run", "argv", "stdin", "timeout"}`` → ``{"id", "rc", "out", "err", "t_ns"}`` (rc -1
with a reason in ``err`` when it could not start, -9 after the timeout; ``t_ns`` is CLOCK_MONOTONIC
before its start and after its end);
``{"id", "op": "clock"}`` → ``{"id", "rc", "t_ns"}``, CLOCK_MONOTONIC;
``{"id", "op": "kill", "target"}`` ends another request's process group;
``{"id", "op": "write", "path", "zlib64", "mode"}`` writes a file (base64 of zlib's stream);
``{"id", "op": "ask", "path", "line"}`` sends a line to a Unix socket and answers with its line.
Standard library only.
"""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

PORT = Path("/dev/virtio-ports/fabric.agent")
running: dict[int, subprocess.Popen[str]] = {}
lock = threading.Lock()


def find_port() -> Path:
    """The port's device; udev makes the named link, before that sysfs knows the name."""
    while True:
        if PORT.exists():
            return PORT
        for name in Path("/sys/class/virtio-ports").glob("*/name"):
            if name.read_text().strip() == PORT.name:
                return Path("/dev", name.parent.name)
        time.sleep(0.05)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run one command to its end or its time limit."""
    began = time.monotonic_ns()
    try:
        child = subprocess.Popen(
            request["argv"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as why:
        return {"rc": -1, "out": "", "err": str(why)}
    running[request["id"]] = child
    try:
        out, err = child.communicate(request.get("stdin", ""), timeout=request["timeout"])
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        times = [began, time.monotonic_ns()]
        return {"rc": -9, "out": out, "err": f"{err}\n[agent] timed out", "t_ns": times}
    finally:
        del running[request["id"]]
    times = [began, time.monotonic_ns()]
    return {"rc": child.returncode, "out": out, "err": err, "t_ns": times}


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """Do one request; returns the answer without its id."""
    if request["op"] == "run":
        return run(request)
    if request["op"] == "clock":
        return {"rc": 0, "t_ns": time.monotonic_ns()}
    if request["op"] == "kill":
        child = running.get(request["target"])
        if child is not None:
            os.killpg(child.pid, signal.SIGKILL)
        return {"rc": 0 if child is not None else 1}
    if request["op"] == "write":
        path = Path(request["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zlib.decompress(base64.b64decode(request["zlib64"])))
        path.chmod(request["mode"])
        return {"rc": 0}
    if request["op"] == "ask":
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(30)
            sock.connect(request["path"])
            sock.sendall(request["line"].encode() + b"\n")
            with sock.makefile() as file:
                return {"rc": 0, "out": file.readline()}
    return {"rc": -1, "err": f"unknown op {request['op']!r}"}


def main() -> None:
    """Serve the port for ever."""
    port = os.open(find_port(), os.O_RDWR)

    def send(answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode() + b"\n"
        with lock:
            while data:
                data = data[os.write(port, data) :]

    def serve(request: dict[str, Any]) -> None:
        try:
            answer = handle(request)
        except Exception as err:  # the host raises it
            answer = {"rc": -1, "out": "", "err": f"{type(err).__name__}: {err}"}
        send({"id": request["id"], **answer})

    send({"id": 0, "hello": sys.version.split()[0]})
    pending = bytearray()
    while True:
        chunk = os.read(port, 65536)
        if not chunk:  # the host has not connected yet, or has left
            time.sleep(0.05)
            continue
        pending += chunk
        if b"\n" not in chunk:  # a file comes in hundreds of chunks
            continue
        *lines, last = pending.split(b"\n")
        pending = last
        for line in lines:
            threading.Thread(target=serve, args=(json.loads(line),), daemon=True).start()


if __name__ == "__main__":
    main()
