"""The process that owns an RDMA lab started from the command line: ``python -m lab.vm.rdma.owner``.

It reads one JSON object on standard input, boots the lab, writes one line of JSON when it is up,
and then answers requests on a Unix socket until SIGTERM. A request is a connection: one JSON
object a line each way. A fault's connection lasts as long as the fault; closing it ends the fault.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab.lifecycle.owner import say
from lab.lifecycle.registry import LabError
from lab.topology import HostTarget, RailTarget, Topology, TopologyError
from lab.vm.rdma import faults, namespaces, pair
from lab.vm.rdma.lab import GuestLab
from lab.vm.rdma.perftest import PerftestError
from lab.vm.wire import VmError

Request = dict[str, Any]
Answer = dict[str, Any]
ERRORS = (LabError, TopologyError, VmError, PerftestError, OSError)


def booted(asked: Request) -> AbstractContextManager[GuestLab]:
    """The lab that was asked for: ``kind``, ``name``, ``hosts``, ``rails``, ``mtu``."""
    if asked["kind"] == "pair":
        return pair.booted(asked["name"], asked["rails"], asked["mtu"])
    return namespaces.booted(asked["name"], asked["hosts"], asked["rails"], asked["mtu"])


def host_of(topology: Topology, text: str) -> int:
    """``h1`` to 1; raises ``TopologyError`` for what is no host."""
    target = topology.target(text)
    if not isinstance(target, HostTarget):
        raise TopologyError(f"'{text}' is no host: h0 to h{topology.hosts - 1}")
    return target.host


class Service:
    """Answers requests. Each yields one or more answers; the last one ends the connection."""

    def __init__(self, lab: GuestLab) -> None:
        self.lab = lab

    def answers(self, request: Request, gone: Callable[[float | None], bool]) -> Iterator[Answer]:
        """Do one request; ``gone(seconds)`` waits so long and says whether the client has left."""
        op = str(request.get("op"))
        act = getattr(self, f"do_{op}", None)
        if act is None:
            yield {"ok": False, "error": f"no request '{op}'"}
            return
        try:
            yield from act(request, gone)
        except TopologyError as error:
            yield {"ok": False, "error": str(error), "usage": True}
        except ERRORS as error:
            yield {"ok": False, "error": str(error)}
        except (KeyError, TypeError, ValueError) as error:
            yield {"ok": False, "error": f"request '{op}' does not make sense: {error!r}"}

    def do_run(self, request: Request, gone: Callable[[float | None], bool]) -> Iterator[Answer]:
        """A command on a host; it is killed when the client leaves."""
        host = host_of(self.lab.topology, request["host"])
        job = self.lab.popen(
            host, request["argv"], timeout=request["timeout"], stdin=request["stdin"]
        )
        while job.running:
            if gone(0.02):
                job.kill()
                return
        done = job.wait()
        yield {"ok": True, "rc": done.rc, "out": done.out, "err": done.err}

    def do_push(self, request: Request, _: Callable[[float | None], bool]) -> Iterator[Answer]:
        """Plugin and fabric-perf of a build directory into the guests."""
        self.lab.push(Path(request["build"]))
        yield {"ok": True}

    def do_perf(self, request: Request, gone: Callable[[float | None], bool]) -> Iterator[Answer]:
        """``fabric-perf``; all ranks are killed when the client leaves."""
        hosts = [host_of(self.lab.topology, text) for text in request["hosts"]]
        job = self.lab.perf(
            request["collective"],
            *request["args"],
            hosts=hosts or None,
            env=request["env"],
            timeout=request["timeout"],
        )
        while job.running:
            if gone(0.05):
                job.kill()
                return
        yield {"ok": True, "ranks": [asdict(result) for result in job.wait()]}

    def do_perftest(self, request: Request, _: Callable[[float | None], bool]) -> Iterator[Answer]:
        """``ib_write_bw`` or ``ib_write_lat`` between two hosts."""
        lab, target = self.lab, self.lab.topology.target(request["source"])
        if not isinstance(target, RailTarget):
            raise TopologyError(f"'{request['source']}' is no rail, such as h0:rail1")
        measure = lab.write_bw if request["program"] == "ib_write_bw" else lab.write_lat
        peer = host_of(lab.topology, request["target"])
        row = measure(target.host, peer, target.rail, request["size"], request["count"])
        yield {"ok": True, **asdict(row)}

    def do_fault(self, request: Request, gone: Callable[[float | None], bool]) -> Iterator[Answer]:
        """A fault until its seconds are over, or the client leaves."""
        fault = faults.make(
            self.lab.kind, request["kind"], request["target"], request["parameters"]
        )
        with self.lab.inject(fault):
            yield {"ok": True, "id": fault.id, "guest_ns": fault.parameters()["guest_ns"]}
            if fault.kind != "flap":
                gone(request["seconds"] or None)
        yield {"ok": True, "id": fault.id, "guest_ns": fault.parameters()["guest_ns"]}

    def do_status(self, _: Request, __: Callable[[float | None], bool]) -> Iterator[Answer]:
        """Devices of all hosts, faults in force, and reports of the kernels."""
        lab = self.lab
        rows = []
        for host in range(lab.topology.hosts):
            shown = lab.run(host, ["rdma", "-j", "link"])
            devices = json.loads(shown.out) if shown.rc == 0 and shown.out.strip() else []
            rows.append({"host": f"h{host}", "devices": devices, "error": shown.err.strip()})
        running = [{"fault": f.kind, "target": f.target_text, "id": f.id} for f in lab.in_force]
        consoles = [str(vm.shell) for vm in lab.machines]
        yield {"ok": True, "hosts": rows, "faults": running, "consoles": consoles}

    def do_kernel_faults(self, _: Request, __: Callable[[float | None], bool]) -> Iterator[Answer]:
        """New reports of faults in the kernel logs."""
        yield {"ok": True, "lines": self.lab.kernel_faults()}


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    service: Service


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        """One request."""
        server = self.server
        assert isinstance(server, _Server)

        def gone(seconds: float | None) -> bool:
            return bool(select.select([self.connection], [], [], seconds)[0])

        try:
            request = json.loads(self.rfile.readline())
        except ValueError as error:
            self._send({"ok": False, "error": f"no JSON: {error}"})
            return
        try:
            for answer in server.service.answers(request, gone):
                self._send(answer)
        except (BrokenPipeError, ConnectionResetError):
            return  # the client has left; what it began has ended with it

    def _send(self, answer: Answer) -> None:
        self.wfile.write(json.dumps(answer).encode() + b"\n")
        self.wfile.flush()


@contextmanager
def serving(lab: GuestLab) -> Iterator[None]:
    """Answer requests on the lab's socket inside the ``with`` block."""
    with _Server(str(lab.dir.socket), _Handler) as server:
        server.service = Service(lab)
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            lab.dir.socket.unlink(missing_ok=True)


def main() -> None:
    """The process."""
    asked: Request = json.loads(sys.stdin.readline())
    stop = threading.Event()

    def leave(number: int, _frame: object) -> None:
        stop.set()
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    try:
        with booted(asked) as lab:
            if asked["build"]:
                lab.push(Path(asked["build"]))
            with serving(lab):
                say({"ok": True})
                log = os.open(lab.dir.root / "owner.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(log, 2)
                stop.wait()
    except (*ERRORS, RuntimeError) as error:
        say({"ok": False, "error": str(error)})
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
