"""Members of the read group who ask without end, and what is left of the daemon's one core.

Real processes and users: who connects, the kernel says. CPU time is what the kernel counts, so that
a busy machine changes nothing.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from fabricd.cli import client
from telemetry.events import Event, EventKind
from telemetry.timeline import Timeline

READER, GROUP = 1003, 60
LONG_S, FLOOD_S = 60.0, 4.0
ROWS = 20_000
DAEMON = """
import asyncio, sys
from pathlib import Path
from fabricd.control.access import Access
from fabricd.control.requests import LARGE, Requests
from fabricd.control.server import ControlServer

async def main():
    server = ControlServer(Path(sys.argv[2]), large=LARGE, access=Access(read=int(sys.argv[3])))
    handlers = Requests(None, None, None, Path(sys.argv[1]), None).handlers()
    async def echo(request, caller):
        return server.refused
    await server.start(handlers | {"echo": echo})
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
ATTACKER = """
import os, socket, sys, threading
path, uid, gid, threads, line = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5].encode()
os.setgroups([]); os.setgid(gid); os.setuid(uid)
def attack():
    while True:
        with socket.socket(socket.AF_UNIX) as one:
            try:
                one.connect(path)
                if line:
                    one.sendall(line + b"\\n")
                while (data := one.recv(1 << 16)) and not data.endswith(b"\\n"):
                    pass
            except OSError:
                pass
for _ in range(threads):
    threading.Thread(target=attack, daemon=True).start()
print("at work", flush=True)
sys.stdin.read()
os._exit(0)
"""


@contextlib.contextmanager
def running(script, *arguments):
    """A process of its own, from when it says that it is at work."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def serving(rows=1):
    """A daemon's control socket with a timeline of so many rows."""
    with tempfile.TemporaryDirectory(prefix="fabric-attack-") as name:
        Path(name).chmod(0o755)
        database, path = Path(name) / "timeline.db", Path(name) / "ctl.sock"
        with Timeline(database, host="h0") as timeline:
            timeline.append(
                [Event(EventKind.PLUGIN, n, n, link="rail0", reason="some text " * 9)
                 for n in range(rows)]
            )  # fmt: skip
        with running(DAEMON, database, path, GROUP) as daemon:
            yield daemon.pid, path


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def loaded(pid, path):
    """(Cores that the daemon uses while root asks it now and then, longest answer in seconds)."""
    began, cpu, longest = time.monotonic(), cpu_s(pid), 0.0
    while time.monotonic() < began + FLOOD_S:
        asked = time.monotonic()
        client.request(path, {"op": "echo"}, limit_s=LONG_S)
        longest = max(longest, time.monotonic() - asked)
        time.sleep(0.1)
    return (cpu_s(pid) - cpu) / (time.monotonic() - began), longest


@pytest.mark.lab
@pytest.mark.parametrize("line", ["", '{"op": "echo"}'], ids=["silent", "asking"])
def test_a_flood_of_connections_takes_no_core_and_keeps_root_waiting_for_no_time(line, lab_root):
    """Those who got no place were refused at once, 7,000 a second, and all of a core went there."""
    with serving() as (pid, path), running(ATTACKER, path, READER, GROUP, 64, line):
        cores, longest = loaded(pid, path)
        refused = client.request(path, {"op": "echo"}, limit_s=LONG_S)
        assert line or refused > 100, "the flood is one"
        assert cores < 0.5
        assert longest < 5.0


@pytest.mark.lab
def test_readers_of_the_whole_timeline_get_a_share_of_the_daemons_time(lab_root):
    line = f'{{"op": "timeline", "limit": {ROWS}}}'
    with serving(ROWS) as (pid, path), running(ATTACKER, path, READER, GROUP, 12, line):
        cores, longest = loaded(pid, path)
        assert cores < 0.6, "its second of work, and then 15 % of a core"
        assert longest < 5.0


@pytest.mark.lab
async def test_a_client_waits_for_its_turn_where_the_queue_of_connections_is_full(lab_root):
    """With a timeout of Python's, connect(2) fails at once where others stand in the queue."""
    with serving() as (_, path), running(ATTACKER, path, READER, GROUP, 200, "x"):
        asked = [asyncio.to_thread(client.request, path, {"op": "echo"}) for _ in range(20)]
        assert all(answer is not None for answer in await asyncio.gather(*asked))
