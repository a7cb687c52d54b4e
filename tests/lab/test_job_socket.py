"""The connection of a fabric-run to its fabricd: what it does when the other end misbehaves."""

import asyncio
import contextlib
import json
from contextlib import asynccontextmanager

import pytest

from fabric_train.host.job_socket import MAX_LINE, DaemonError, JobSocket
from fabric_train.messages.documents import AgentDocument, JobOrder, to_data

pytestmark = pytest.mark.lab

WELCOME = {"kind": "welcome", "host": "a", "boot_id": "b"}
ORDER = {"kind": "order", "compute": "one", "order": to_data(JobOrder("i1", "waiting", "why"))}


class Daemon:
    """Answers each connection with the next of ``answers``, lines as objects or bytes."""

    def __init__(self, path, *answers):
        self.path = path
        self.answers = list(answers)
        self.received = []
        self.writer = None

    async def serve(self, reader, writer):
        self.writer = writer
        answer = self.answers.pop(0) if self.answers else [WELCOME]
        with contextlib.suppress(ConnectionError):
            for line in answer:
                writer.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
            while line := await reader.readline():
                self.received.append(json.loads(line))
        writer.close()


class Owner:
    def __init__(self):
        self.hosts, self.orders, self.fences, self.stops, self.reports = [], [], [], [], []

    def welcomed(self, host):
        self.hosts.append(host)

    def ordered(self, compute, order):
        self.orders.append((compute, order))

    def fenced(self, fence):
        self.fences.append(fence)

    def stopped(self, reason):
        self.stops.append(reason)


@asynccontextmanager
async def connected(tmp_path, *answers, opens=True):
    daemon, owner = Daemon(tmp_path / "jobs.sock", *answers), Owner()
    server = await asyncio.start_unix_server(daemon.serve, daemon.path)
    one = JobSocket(tmp_path, "gpt", "i1", owner, owner.reports.append)
    task = asyncio.create_task(one.run(await one.open())) if opens else None
    try:
        yield daemon, owner, one
    finally:
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await one.close(leave=False)
        server.close()
        if daemon.writer is not None:
            daemon.writer.close()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - of many objects
            await asyncio.sleep(0.01)


def document(step=0):
    return AgentDocument("gpt", "a", "i1", 1, 0, 1, "127.0.0.1:1", "127.0.0.1:2", "t", [],
                         suspects=step)  # fmt: skip


async def test_it_registers_and_hears_what_fabricd_says(tmp_path):
    fence = {"kind": "fence", "id": "f", "host": "b", "incarnation": "i"}
    lines = [WELCOME, ORDER, fence, {"kind": "stop", "reason": "fenced"}]
    async with connected(tmp_path, lines) as (daemon, owner, one):
        await until(lambda: owner.stops)
        one.publish(document())
        one.acknowledge("f")
        await one.close(leave=True)
        await until(lambda: len(daemon.received) == 4)
    assert daemon.received == [
        {"kind": "register", "version": 1, "job": "gpt", "incarnation": "i1"},
        {"kind": "document", "document": to_data(document())},
        {"kind": "fenced", "id": "f"},
        {"kind": "leave"},
    ]
    assert (owner.hosts, owner.stops) == (["a"], ["fenced"])
    assert owner.orders == [("one", JobOrder("i1", "waiting", "why"))]
    assert [one.id for one in owner.fences] == ["f"]


async def test_when_fabricd_is_back_it_registers_again_and_sends_the_newest_document(tmp_path):
    async with connected(tmp_path) as (daemon, owner, one):
        one.publish(document(1))
        await until(lambda: len(daemon.received) == 2)
        daemon.writer.close()
        await until(lambda: "fabricd is gone; the ranks go on" in owner.reports)
        one.publish(document(2))
        await until(lambda: "fabricd is back" in owner.reports and len(daemon.received) >= 4)
    kinds = [line["kind"] for line in daemon.received]
    assert kinds == ["register", "document", "register", "document"]
    assert daemon.received[-1]["document"] == to_data(document(2))


async def test_a_bad_line_is_counted_and_the_next_one_counts(tmp_path):
    async with connected(tmp_path, [WELCOME, b"nonsense\n", {"kind": "x"}, WELCOME, ORDER]) as (
        _, owner, one,
    ):  # fmt: skip
        await until(lambda: owner.orders)
        assert one.bad_lines == 3
        assert "fabricd says what is no message: unknown kind 'x' (so far: 2)" in owner.reports


async def test_who_is_refused_says_so_once_and_comes_again_ever_later(tmp_path, monkeypatch):
    monkeypatch.setattr("fabric_train.host.job_socket._RETRY_S", (0.01, 0.02))
    refused = [WELCOME, {"kind": "refused", "reason": "documents take too much"}]
    async with connected(tmp_path, refused, refused, refused, [WELCOME, ORDER]) as (_, owner, __):
        await until(lambda: owner.orders)
    assert owner.reports == ["fabricd refuses job gpt: documents take too much"]
    assert len(owner.hosts) == 4


async def test_a_line_without_end_is_counted_and_the_connection_made_anew(tmp_path):
    async with connected(tmp_path, [WELCOME, b"x" * (MAX_LINE + 100)], [WELCOME, ORDER]) as (
        _, owner, one,
    ):  # fmt: skip
        await until(lambda: owner.orders)
        assert one.bad_lines == 1
        assert owner.hosts == ["a", "a"]


async def test_a_fabricd_of_another_host_is_not_taken_later(tmp_path):
    other = WELCOME | {"host": "z"}
    async with connected(tmp_path, [WELCOME], [other], [WELCOME]) as (daemon, owner, _):
        await until(lambda: daemon.received)
        daemon.writer.close()
        await until(lambda: owner.hosts == ["a", "a"])
        assert "fabricd is of host z now, and was of a" in owner.reports


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([{"kind": "refused", "reason": "job gpt belongs to uid 7"}], "gpt belongs to uid 7"),
        ([ORDER], "it says Order"),
        ([b"hello\n"], "no JSON"),
        ([b"x" * (MAX_LINE + 100)], "does not welcome this"),
    ],
)
async def test_who_is_not_welcome_hears_why_at_once(tmp_path, lines, text):
    async with connected(tmp_path, lines, opens=False) as (_, owner, one):
        with pytest.raises(DaemonError, match=text):
            await one.open()
        assert owner.hosts == []


async def test_a_document_that_is_too_long_is_not_sent_and_says_so(tmp_path):
    async with connected(tmp_path) as (daemon, owner, one):
        await until(lambda: daemon.received)
        one.publish(document(1))
        long = AgentDocument(**{**vars(document()), "failed": "x" * MAX_LINE})
        one.publish(long)
        one.publish(document(2))
        await until(lambda: len(daemon.received) == 3)
    assert any(f"at most {MAX_LINE} B" in line for line in owner.reports)
