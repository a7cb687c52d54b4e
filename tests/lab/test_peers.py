"""Connections between the agents of a job, on loopback: who is let in, heard, missed and fenced."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from fabric_train.host import peer_messages as wire
from fabric_train.host.peers import Peers
from fabric_train.messages.addresses import join
from fabric_train.messages.documents import Member
from fabric_train.messages.frames import MessageError

pytestmark = pytest.mark.lab


class Agent:
    """One agent's end of the connections."""

    def __init__(self, host, *, job="gpt", incarnation="i1", token=None):
        self.said = []
        self.reports = []
        self.hears, self.misses = [], []
        self.connected = []
        self.token = token or f"token of {host}"
        self.peers = Peers(job, host, incarnation, self.token, self, self.reports.append)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.address = ("127.0.0.1", port)
        self.member = Member(host, incarnation, join("127.0.0.1", port), "", self.token)

    async def open(self):
        await self.peers.open(self._listener)

    def peer_connected(self, host):
        self.connected.append(host)

    def peer_received(self, host, message):
        if isinstance(message, wire.Challenge):
            raise MessageError("nothing that an agent says here")
        self.said.append((host, message))

    def heard(self, hears, misses):
        self.hears, self.misses = hears, misses


@asynccontextmanager
async def agents(*agents):
    for one in agents:
        await one.open()
    for one in agents:
        one.peers.set_members([other.member for other in agents])
    try:
        yield agents
    finally:
        for one in agents:
            await one.peers.close()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - of many objects
            await asyncio.sleep(0.01)


async def test_agents_hear_each_other_and_miss_who_is_gone():
    async with agents(Agent("a"), Agent("b"), Agent("c")) as (a, b, c):
        await until(lambda: a.hears == ["b", "c"] and b.hears == ["a", "c"])
        await until(lambda: c.hears == ["a", "b"])
        await c.peers.close()
        await until(lambda: a.misses == b.misses == ["c"])
        assert a.hears == ["b"]
        b.peers.set_members([a.member, b.member])
        await until(lambda: b.misses == [])


async def test_what_one_says_the_other_hears_whole_and_in_order():
    async with agents(Agent("a"), Agent("b")) as (a, b):
        await until(lambda: a.hears == ["b"] and b.hears == ["a"])
        messages = [wire.StoreLocal(1, 0, step, b"%d" % step * (4 << 20)) for step in range(3)]
        for message in messages:
            assert a.peers.send("b", message)
        assert b.peers.send("a", wire.StoredLocal(1, 0, 0))
        await until(lambda: len(b.said) == 3 and a.said)
        assert [message for _, message in b.said] == messages
        assert a.said == [("b", wire.StoredLocal(1, 0, 0))]
        assert not a.peers.send("z", wire.StoredLocal(1, 0, 0))


async def test_a_fenced_agent_is_cut_off_from_both_sides_and_never_let_in_again():
    async with agents(Agent("a"), Agent("b"), Agent("c")) as (a, b, c):
        await until(lambda: b.hears == ["a", "c"])
        b.peers.fence("a", "i1")  # a connects to b
        b.peers.fence("c", "i1")  # b connects to c
        assert (b.hears, b.misses) == ([], [])
        assert not b.peers.send("a", wire.StoredLocal(1, 0, 0))
        await until(lambda: any("incarnation i1 of a is fenced" in one for one in a.reports))
        await until(lambda: a.misses == ["b"] and c.misses == ["b"])
        b.peers.set_members([a.member, c.member])
        await asyncio.sleep(0.5)
        assert (b.hears, b.misses) == ([], [])
        assert b.connected.count("a") == 1
        assert b.connected.count("c") == 1


async def test_a_later_life_of_a_fenced_host_is_let_in():
    again = Agent("a", incarnation="i2")
    async with agents(Agent("a"), Agent("b")) as (_, b):
        await until(lambda: b.hears == ["a"])
        b.peers.fence("a", "i1")
        await again.open()
        again.peers.set_members([again.member, b.member])
        b.peers.set_members([again.member, b.member])
        await until(lambda: b.hears == ["a"])
        await again.peers.close()


@pytest.mark.parametrize(
    ("stranger", "text"),
    [
        ({"token": "another"}, None),
        ({"job": "other"}, "refuses: this is job gpt"),
        ({"incarnation": "i0"}, "refuses: incarnation i1 of a is the member"),
    ],
)  # fmt: skip
async def test_who_is_not_of_the_job_is_refused_and_told_why(stranger, text):
    b, stranger = Agent("b"), Agent("a", **stranger)
    async with agents(b, stranger):
        b.peers.set_members([Member("a", "i1", "127.0.0.1:9", "", "token of a"), b.member])
        if text is None:
            wrong = Member("b", "i1", b.member.address, "", "a token that it guessed")
            stranger.peers.set_members([wrong])
            await until(lambda: any("does not know the token" in one for one in b.reports))
        else:
            await until(lambda: any(text in one for one in stranger.reports))
        assert b.connected == []
        assert b.hears == []


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, wire.CODEC.encode(wire.Heartbeat()),
     wire.CODEC.encode(wire.PeerHello("gpt", "a", "i1", "n", "p"))],
)  # fmt: skip
async def test_what_is_no_greeting_is_closed_counted_and_reported(data):
    async with agents(Agent("b")) as (b,):
        reader, writer = await asyncio.open_connection(*b.address)
        writer.write(data)
        async with asyncio.timeout(60):
            while await reader.read(1000):  # its challenge, then the end
                pass
        writer.close()
        assert b.peers.bad_connections == 1
        assert "bad connections so far: 1" in b.reports[0]


async def test_a_peer_that_says_nonsense_is_disconnected_and_may_come_again():
    async with agents(Agent("a"), Agent("b")) as (a, b):
        await until(lambda: a.hears == ["b"] and b.hears == ["a"])
        assert a.peers.send("b", wire.Challenge("again"))
        await until(lambda: b.connected.count("a") == 2)
        assert b.peers.bad_connections == 1
        assert "agent on a: nothing that an agent says here" in b.reports[0]
