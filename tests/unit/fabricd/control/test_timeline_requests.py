"""Rows of the timeline over the control socket: all of them, in order, and a few at a time."""

import asyncio
import json
import os
import socket
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fabricd.control import timeline_requests
from fabricd.control.requests import LARGE, Requests
from fabricd.control.server import ControlServer, RequestError
from fabricd.control.timeline_requests import TimelineReader
from telemetry.events import Event, EventKind
from telemetry.timeline import Timeline


def rows(count, *, link="rail0"):
    data = {"pid": 1234, "job": "gpt", "bytes": 12345678, "comm": 12, "detail": 3}
    return [
        Event(EventKind.PLUGIN, n, n, link=link, reason=f"path_down {n}", data=data)
        for n in range(count)
    ]


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "timeline.db"
    with Timeline(path, host="h0") as timeline:
        timeline.append([*rows(1030), *rows(5, link="rail1")])
    return path


def read_all(database, **query):
    reader = TimelineReader(database, query)
    try:
        parts = []
        while part := reader.next_part():
            parts += json.loads(b"[" + part + b"]")
        return parts
    finally:
        reader.close()


@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": 7}, {"limit": 100}, {"limit": 100_000},
              {"limit": 900, "link": "rail0"}, {"limit": 9, "link": "rail1"},
              {"limit": 9000, "since_ns": 300, "until_ns": 777}, {"limit": 3, "kind": "plugin"},
              {"limit": 3, "kind": "flap"}],
)  # fmt: skip
def test_parts_are_what_a_query_gives(database, query):
    with Timeline(database, read_only=True) as timeline:
        assert read_all(database, **query) == [e.to_dict() for e in timeline.query(**query)]


def test_rows_that_are_deleted_meanwhile_are_left_out(database):
    reader = TimelineReader(database, {"limit": 1030, "link": "rail0"})
    first = json.loads(b"[" + reader.next_part() + b"]")
    with sqlite3.connect(database) as db:
        db.execute("DELETE FROM events WHERE wall_ns >= 100 AND wall_ns < 1000")
    rest = json.loads(b"[" + reader.next_part() + b"]")
    assert [row["wall_ns"] for row in first + rest] == [*range(100), *range(1000, 1030)]
    assert reader.next_part() == b""
    reader.close()


def test_no_file_is_refused(tmp_path):
    with pytest.raises(RequestError, match="timeline: "):
        TimelineReader(tmp_path / "none.db", {"limit": 1})


async def served(database, line, *, clients=1):
    server = ControlServer(database.parent / "ctl.sock", large=LARGE)
    await server.start(Requests(None, None, None, database, None).handlers())

    async def one():
        reader, writer = await asyncio.open_unix_connection(
            str(database.parent / "ctl.sock"), limit=2**24
        )
        writer.write(line)
        answer = json.loads(await reader.readline())
        writer.close()
        return answer

    try:
        return await asyncio.gather(*(one() for _ in range(clients)))
    finally:
        await server.stop()


async def test_the_daemon_serves_them(database):
    [answer] = await served(database, b'{"op":"timeline","limit":100000}\n')
    assert answer["ok"]
    assert [row["reason"] for row in answer["data"]] == [e.reason for e in rows(1030) + rows(5)]


async def test_a_file_that_breaks_half_way_is_said(database, monkeypatch):
    monkeypatch.setattr(timeline_requests, "ROWS_AT_ONCE", 10)
    with sqlite3.connect(database) as db:
        db.execute("UPDATE events SET data = '{' WHERE id = 500")
    [answer] = await served(database, b'{"op":"timeline","limit":100000}\n')
    assert not answer["ok"]
    assert answer["error"].startswith("internal error")


_DAEMON = """
import asyncio, sys
from pathlib import Path
from fabricd.control.access import Access
from fabricd.control.requests import LARGE, Requests
from fabricd.control.server import ControlServer

async def main():
    server = ControlServer(Path(sys.argv[2]), large=LARGE)
    await server.start(Requests(None, None, None, Path(sys.argv[1]), None).handlers())
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def end_of_answer(path):
    """Ask for as many rows as one may, and read the answer as fast as it comes."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(300)
        client.connect(str(path))
        client.sendall(b'{"op":"timeline","limit":100000}\n')
        end = b""
        while not end.endswith(b"\n"):
            part = client.recv(1 << 16)
            assert part, "closed half way"
            end = (end + part)[-100:]
        return end


def peak_kib(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


@pytest.mark.nightly
def test_twelve_large_answers_at_once_cost_little_memory(tmp_path):
    """120,000 rows, 100,000 of them twelve times over: it took 1.7 GB once."""
    database, path = tmp_path / "timeline.db", tmp_path / "ctl.sock"
    with Timeline(database, host="h0") as timeline:
        for _ in range(24):
            timeline.append(rows(5000))
    command = [sys.executable, "-c", _DAEMON, str(database), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as daemon:
        try:
            assert daemon.stdout.readline() == b"up\n"
            before = peak_kib(daemon.pid)
            with ThreadPoolExecutor(12) as clients:
                ends = list(clients.map(end_of_answer, [path] * 12))
            assert sum(end.endswith(b'],"ok":true}\n') for end in ends) >= 6, "root's places"
            assert peak_kib(daemon.pid) < min(120_000, before + 60_000)
        finally:
            daemon.kill()
