"""The job socket with real processes: what one said before its end counts."""

import asyncio
import contextlib
import json
import subprocess
import sys

import pytest

from fabricd.escalate.job_registry import JobRegistry
from fabricd.escalate.job_server import JobServer

PROGRAM = """
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b'{"kind": "register", "version": 1, "job": "train", "incarnation": "i"}\\n')
if sys.argv[2] == "child":  # It has the connection, too, and lives on.
    os.set_inheritable(s.fileno(), True)
    if not os.fork():
        os.close(0)
        s.recv(1)
        os._exit(0)
os.read(0, 1)
if sys.argv[2] == "leaves":
    s.sendall(b'{"kind": "document", "document": {"step": 7}}\\n{"kind": "leave"}\\n')
"""


class Owner:
    def __init__(self):
        self.said, self.there, self.over = [], asyncio.Event(), asyncio.Event()

    def registered(self, run, session):
        self.there.set()

    def document_changed(self, run):
        self.said.append(run.document)

    def run_gone(self, run):
        self.said.append("gone")
        self.over.set()

    def run_left(self, run):
        self.said.append("left")
        self.over.set()

    def job_line_refused(self, reason, detail):
        raise AssertionError(reason, detail)


@pytest.fixture
async def served(tmp_path):
    owner = Owner()
    server = JobServer(tmp_path / "jobs.sock", JobRegistry(), owner)
    server.open()
    task = asyncio.create_task(server.run())
    owner.server = server
    yield owner, tmp_path / "jobs.sock"
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def started(path, how):
    command = [sys.executable, "-c", PROGRAM, str(path), how]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


@pytest.mark.parametrize(
    ("how", "said"), [("leaves", [{"step": 7}, "left"]), ("ends", ["gone"]), ("child", ["gone"])]
)
async def test_a_process_that_left_and_ended_at_once_has_left(served, how, said):
    """fabricd is kept from running meanwhile: lines and end are there at once when it looks."""
    owner, path = served
    with started(path, how) as process:
        async with asyncio.timeout(60):
            await owner.there.wait()
            process.stdin.write(b"x")
            process.stdin.flush()
            process.wait()  # The event loop stands still.
            await owner.over.wait()
    await asyncio.sleep(0.05)
    assert owner.said == said


async def test_a_document_that_takes_too_much_is_refused_with_one_sentence(served, monkeypatch):
    owner, path = served
    refused = []
    monkeypatch.setattr(owner, "job_line_refused", lambda *said: refused.append(said))
    monkeypatch.setattr("fabricd.escalate.job_registry.MOST_BYTES_OF_USER", 10_000)
    reader, writer = await asyncio.open_unix_connection(path)
    lines = ["i" * 50, "j" * 11_000]
    writer.write(b'{"kind": "register", "version": 1, "job": "train", "incarnation": "i"}\n')
    for one in lines:
        writer.write(json.dumps({"kind": "document", "document": {"x": one}}).encode() + b"\n")
    async with asyncio.timeout(60):
        answer = json.loads(await reader.readline())
        assert await reader.read() == b""
    assert answer["kind"] == "refused"
    assert answer["reason"].startswith("with this one the documents of the jobs of uid ")
    assert [reason for reason, _ in refused] == ["document"]
    assert owner.said == [{"x": lines[0]}]
    assert owner.server.registry.runs["train"].present, "its process lives, and may come again"
    writer.close()


async def test_lines_that_are_read_slowly_count_as_well(served, monkeypatch):
    """A user who says much is read at a pace, so the end is known long before the last line."""
    owner, path = served
    monkeypatch.setattr(owner.server._pace, "delay_s", lambda _uid, _size: 0.1)
    with started(path, "leaves") as process:
        async with asyncio.timeout(60):
            await owner.there.wait()
            process.stdin.write(b"x")
            process.stdin.flush()
            process.wait()
            await owner.over.wait()
    assert owner.said == [{"step": 7}, "left"]
