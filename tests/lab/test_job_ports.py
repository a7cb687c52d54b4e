"""Attack S6: a stranger on the host looks for an open port of somebody's job.

Ranks meet in their agent's store, which has no port, and gloo's own are closed once they have met.
"""

import re
import socket
import subprocess
from pathlib import Path

import pytest
from test_takeover import RANKS, command, environment, records

from lab.cluster import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

LONG = 240.0
STEPS = 40
_LISTENS = "0A"  # net/tcp_states.h
_SILENCE_S = 0.5


def family(root):
    """``root`` and all that descends from it."""
    children = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = entry.read_text()
        except OSError:
            continue
        parent = int(text.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(entry.parent.name))
    found = [root]
    for one in found:
        found += children.get(one, [])
    return found


def listening(pids):
    """Ports of loopback at which one of ``pids`` listens."""
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes |= set(re.findall(r"socket:\[(\d+)\]", str(descriptor.readlink())))
            except OSError:
                continue
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def open_to_a_stranger(ports):
    """Those of ``ports`` that take a connection."""
    taken = []
    for port in ports:
        try:
            socket.create_connection(("127.0.0.1", port), _SILENCE_S).close()
        except OSError:
            continue
        taken.append(port)
    return taken


def test_no_port_of_a_job_takes_a_strangers_connection_also_after_a_takeover(tmp_path):
    directory = tmp_path / "job"
    directory.mkdir()
    with subprocess.Popen(
        command(directory, steps=STEPS), env=environment("2:13:forward", "0:30:waits"),
        cwd=directory, stderr=subprocess.PIPE, text=True,
    ) as job:  # fmt: skip
        wait_until((directory / "pid.go on").exists, LONG, "the job stands still")
        ports = listening(family(job.pid))
        taken = open_to_a_stranger(ports)
        (directory / "go on").touch()
        _, error = job.communicate(timeout=LONG)
    assert job.returncode == 0, error
    assert len(ports) >= RANKS  # else it was not looked for in the right place
    assert taken == []
    assert [row["ranks"] for row in records(directory)] == [[2]]
