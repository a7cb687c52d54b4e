"""A stranger on the network of a job's agents, without the job's token, at an agent's open port."""

import asyncio
import json
import socket

import pytest

from fabric_train.host import peer_messages as wire
from fabric_train.host.job_key import JobKey
from fabric_train.host.peers import UNAUTHENTICATED, Peers
from fabric_train.messages.documents import Member

TIMES = 40


class Nobody:
    def peer_connected(self, host):
        raise AssertionError(host)

    def peer_received(self, host, message):
        raise AssertionError(host)

    def heard(self, hears, misses):
        pass


def frame(header):
    return len(header).to_bytes(4, "little") + bytes(4) + header


def hello(**changes):
    said = {"kind": "peer_hello", "job": "gpt", "host": "h2", "incarnation": "i", "nonce": "n",
            "proof": "p", "version": wire.VERSION}  # fmt: skip
    return frame(json.dumps(said | changes).encode())


GREETINGS = {
    "a proof that is no Unicode": hello(proof="\ud800"),
    "a name that is no Unicode": hello(host="\ud800", nonce="\udfff"),
    "a proof in another alphabet": hello(proof="ä" * 64),
    "values in each other": frame(
        b'{"kind": "peer_hello", "job": ' + b"[" * 980 + b"]" * 980 + b"}"
    ),
    "a kind in each other": frame(b'{"kind": ' + b"[" * 980 + b"]" * 980 + b"}"),
    "a number without end": frame(b'{"kind": "heartbeat", "x": ' + b"9" * 4000 + b"}"),
    "no greeting": b"\xff" * 64,
}


@pytest.mark.parametrize("said", GREETINGS)
async def test_whatever_he_says_is_counted_and_fills_no_log(said):
    """A proof that is no Unicode was a traceback in the job's log, each time."""
    reports, raised = [], []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: raised.append(what))
    peers = Peers("gpt", "h1", "i1", "token", Nobody(), reports.append)
    listener = socket.create_server(("127.0.0.1", 0))
    await peers.open(listener)
    for _ in range(TIMES):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(GREETINGS[said])
        async with asyncio.timeout(30):
            while await reader.read(4096):
                pass
        writer.close()
    await peers.close()
    assert raised == []
    assert peers.bad_connections == TIMES
    assert len(reports) <= TIMES.bit_length()


class Met(Nobody):
    def __init__(self):
        self.met = asyncio.Event()

    def peer_connected(self, host):
        self.met.set()


async def test_silent_connections_keep_no_agent_away():
    """64 connections that said nothing, opened anew as they were ended, kept all agents away."""
    met = Met()
    here = Peers("gpt", "h1", "i1", "token", met, lambda _: None)
    other = Peers("gpt", "h0", "i0", "other", Met(), lambda _: None)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    await here.open(listener)
    where = listener.getsockname()

    async def hold():
        while True:
            reader, writer = await asyncio.open_connection(*where)
            try:
                while await reader.read(4096):
                    pass
            except ConnectionError:
                pass
            finally:
                writer.close()
            await asyncio.sleep(0.05)

    holders = [asyncio.create_task(hold()) for _ in range(2 * UNAUTHENTICATED)]
    await asyncio.sleep(0.5)
    other.set_members([Member("h1", "i1", f"127.0.0.1:{where[1]}", "127.0.0.1:1", "token")])
    async with asyncio.timeout(4):  # a silent one is ended after 5 s in any case
        await met.met.wait()
    for task in holders:
        task.cancel()
    await asyncio.gather(*holders, return_exceptions=True)
    for one in (other, here):
        await one.close()


def test_no_seal_of_a_member_ends_a_fabric_run():
    key = JobKey("gpt", b"0123456789abcdef")
    for seal in ("\ud800", "ä", ""):
        assert not key.is_sealed(Member("h1", "i", "a:1", "a:2", "t", seal))
