"""The daemon's end of the prober's control socket: notices, answers, and a prober that goes."""

import asyncio
import json
import socket

import pytest

from fabricd.probes.client import ProberClient, ProberError, ProberGoneError


def talk(story, noticed=None):
    """Run ``story(client, prober)`` with both ends of a socket; ``noticed`` is the client's."""

    async def run():
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            client = ProberClient(ours, noticed)
            try:
                await story(client, theirs)
            finally:
                await client.close()

    asyncio.run(run())


async def asked(prober):
    """The next request; the prober's end is read without holding up the loop."""
    return json.loads(await asyncio.to_thread(prober.recv, 4096))


def test_many_notices_call_once():
    calls = []

    async def story(client, prober):
        for _ in range(20):
            prober.send(b"!")
        assert not await client.wait(0.05), "who is called does not wait as well"
        assert calls == [1]
        prober.send(b"!")
        await client.wait(0.05)
        assert calls == [1, 1]

    talk(story, lambda: calls.append(1))


def test_without_somebody_to_call_wait_returns_once():
    async def story(client, prober):
        prober.send(b"!")
        prober.send(b"!")
        assert await client.wait(10)
        assert not await client.wait(0.02)

    talk(story)


def test_answers_come_between_notices():
    calls = []

    async def story(client, prober):
        status = asyncio.create_task(client.status())
        assert (await asked(prober))["op"] == "status"
        prober.send(b"!")
        prober.send(json.dumps({"ok": True, "version": "v"}).encode())
        prober.send(b"!")
        assert (await status)["version"] == "v"
        rekey = asyncio.create_task(client.rekey())
        await asked(prober)
        prober.send(json.dumps({"ok": False, "error": "no key"}).encode())
        with pytest.raises(ProberError, match="no key"):
            await rekey
        assert calls

    talk(story, lambda: calls.append(1))


@pytest.mark.parametrize("last", [None, b"{nonsense"], ids=["closed", "nonsense"])
def test_whoever_waits_for_a_prober_that_goes_is_told(last):
    async def story(client, prober):
        status = asyncio.create_task(client.status())
        await asked(prober)
        waiting = asyncio.create_task(client.wait(60))
        await asyncio.sleep(0)
        if last is None:
            prober.shutdown(socket.SHUT_RDWR)
        else:
            prober.send(last)
        for pending in (status, waiting):
            with pytest.raises(ProberGoneError, match="closed"):
                await asyncio.wait_for(pending, 10)
        with pytest.raises(ProberGoneError):
            await client.status()

    talk(story)


def test_a_prober_that_does_not_answer_is_left():
    async def story(client, prober):
        with pytest.raises(ProberGoneError, match=r"no answer in 0\.02 s"):
            await client.request({"op": "status"}, timeout_s=0.02)
        # Else what it says too late would be taken for the next request's answer.
        with pytest.raises(BrokenPipeError):
            prober.send(b'{"ok": true}')
        with pytest.raises(ProberGoneError):
            await client.status()

    talk(story)


def test_large_packets_come_page_by_page_and_an_older_prober_has_none():
    async def story(client, prober):
        asking = asyncio.create_task(client.mtu())
        for skip, page, more in ((0, [[8972, 0, 7, 0, 0, 0]] * 400, True), (400, [[1] * 6], False)):
            request = await asked(prober)
            assert (request["op"], request["skip"]) == ("mtu", skip)
            prober.send(json.dumps({"ok": True, "paths": page, "more": more}).encode())
        rows = await asking
        assert [row.index for row in rows] == list(range(401))
        assert (rows[0].tx_size, rows[0].tx_passed_ns, rows[400].rx_missing) == (8972, 7, 1)
        for answer in (
            {"ok": False, "error": "op: 'mtu' is none of …"},
            {"ok": True},
            {"ok": True, "paths": [[1, 2]]},
            {"ok": True, "paths": [["a"] * 6]},
            {"ok": True, "paths": [None]},
        ):
            asking = asyncio.create_task(client.mtu())
            await asked(prober)
            prober.send(json.dumps(answer).encode())
            with pytest.raises(ProberError):
                await asking

    talk(story)
