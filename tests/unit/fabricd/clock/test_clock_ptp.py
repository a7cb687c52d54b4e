"""The PTP edge's sockets, made up: who is heard, whose stamps count, and what fails."""

import errno
import socket
import struct
import time
from ipaddress import ip_address

import pytest

from clocksync.ptp.messages import (
    Announce,
    DelayReq,
    DelayResp,
    Flag,
    Grant,
    Header,
    PortIdentity,
    Signaling,
    Sync,
    Type,
    decode,
    encode,
)
from fabricd.clock import ptp as module
from fabricd.clock.clocks import RawClocks
from fabricd.clock.ptp import EVENT_PORT, GENERAL_PORT, PtpEdge

MASTER = "10.0.0.9"
PORT = PortIdentity(b"\1" * 8, 1)
SECOND = 10**9


class Made:
    """A socket of a test."""

    def __init__(self, family, port):
        self.family, self.port = family, port
        self.came, self.left, self.sent = [], [], []
        self.fails = None
        self.closed = False

    def recvmsg(self, _most, _ancillary, flags=0):
        queue = self.left if flags & socket.MSG_ERRQUEUE else self.came
        if not queue:
            raise BlockingIOError
        found = queue.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    def sendto(self, data, target):
        if self.fails and target[0] in self.fails:
            raise OSError(self.fails[target[0]], "made up")
        self.sent.append((data, target))

    def close(self):
        self.closed = True


def stamped(wall_ns):
    data = struct.pack("@qqqqqq", *divmod(wall_ns, SECOND), 0, 0, 0, 0)
    return [(socket.SOL_SOCKET, 37, data)]


@pytest.fixture
def sockets(monkeypatch):
    made = {}

    def bound(_self, family, port):
        made[family, port] = Made(family, port)
        return made[family, port]

    monkeypatch.setattr(PtpEdge, "_bound", bound)
    return made


@pytest.fixture
def now(monkeypatch):
    """All clocks, moved by the test; the wall clock is a known time ahead."""

    class Now:
        raw, wall = 10**12, 1_800_000_000 * SECOND

        def pass_(self, ns):
            self.raw += ns

    it = Now()
    monkeypatch.setattr(
        module.time, "clock_gettime_ns",
        lambda which: it.raw if which == time.CLOCK_MONOTONIC_RAW else it.raw + it.wall,
    )  # fmt: skip
    return it


def edge_of(*masters, **given):
    return PtpEdge(7, [ip_address(text) for text in masters], **given)


def test_an_exchange_through_sockets(sockets, now):
    edge, clocks = edge_of(MASTER), RawClocks()
    edge.tick(clocks)
    event, general = (sockets[socket.AF_INET, port] for port in (EVENT_PORT, GENERAL_PORT))
    (request, target), *_ = general.sent
    assert target == (MASTER, GENERAL_PORT)
    us = decode(request).header.source
    assert us.clock == b"\x02fab\0\0\0\7"
    grants = tuple(Grant(kind, -3, 60) for kind in (Type.ANNOUNCE, Type.SYNC, Type.DELAY_RESP))
    answered = 0
    for number in range(60):
        now.pass_(SECOND // 10)
        flags = Flag.UNICAST | Flag.PTP_TIMESCALE
        head = Header(PORT, number, flags=flags)
        said = [Announce(head, 37, 128, 6, 0xFE, 0, 128, PORT.clock, 0),
                Signaling(head, us, grants)]  # fmt: skip
        general.came += [(encode(each), [], 0, (MASTER, GENERAL_PORT)) for each in said]
        general.came.append((encode(said[0]), [], 0, ("10.0.0.8", GENERAL_PORT)))
        # TAI is a second ahead of the raw clock; ways take 5 us.
        left = now.raw - SECOND // 20
        sync = Sync(head, left + SECOND)
        event.came.append((encode(sync), stamped(left + 5000 + now.wall), 0, (MASTER, EVENT_PORT)))
        for data, _ in event.sent:
            request = decode(data)
            assert isinstance(request, DelayReq)
            at = now.raw - SECOND // 30
            # As the kernel gives it back: with its headers.
            event.left.append((bytes(42) + data, stamped(at + now.wall), 0, ()))
            answer = DelayResp(
                Header(PORT, request.header.sequence), at + 5000 + SECOND, request.header.source
            )
            general.came.append((encode(answer), [], 0, (MASTER, GENERAL_PORT)))
            answered += 1
        event.sent.clear()
        found = edge.tick(clocks)
    assert answered > 20
    assert found.time.ns - now.raw == pytest.approx(SECOND, abs=10)
    assert found.half_rtt_ns == pytest.approx(5000, abs=10)
    assert found.tracking
    assert edge.unknown == 60, "of another address"
    edge.close()
    cancels = decode(general.sent[-1][0]).tlvs
    assert len(cancels) == 3
    assert event.closed
    edge.close()


def test_a_port_in_use_is_said_once_and_tried_again(monkeypatch, now, sockets):
    tries = []

    def busy(_self, _family, port):
        tries.append(port)
        raise OSError(errno.EADDRINUSE, f"port {port}: Address already in use")

    monkeypatch.setattr(PtpEdge, "_bound", busy)
    edge = edge_of(MASTER)
    for _ in range(5):
        now.pass_(SECOND // 10)
        assert edge.tick(RawClocks()) is None
    assert edge.why == "ports: port 319: Address already in use"
    assert tries == [319]
    monkeypatch.undo()
    monkeypatch.setattr(PtpEdge, "_bound", lambda _self, family, port: Made(family, port))
    edge._retry_s = 0.0
    edge.tick(RawClocks())
    assert edge.why == ""


def test_a_master_that_cannot_be_reached_is_said_and_others_are_spoken_with(sockets, now):
    edge = edge_of(MASTER, "10.0.0.10")
    edge.tick(RawClocks())
    general = sockets[socket.AF_INET, GENERAL_PORT]
    general.sent.clear()
    general.fails = {MASTER: errno.ENETUNREACH}
    for _ in range(40):
        now.pass_(SECOND // 10)
        edge.tick(RawClocks())
        assert edge.why in ("", f"{MASTER}: made up")
    assert edge.why
    assert {target[0] for _, target in general.sent} == {"10.0.0.10"}
    general.fails = {MASTER: errno.ENODEV}
    for _ in range(100):
        now.pass_(SECOND // 10)
        edge.tick(RawClocks())
    assert general.closed, "the interface has gone"


def test_both_families_and_a_link_local_master(sockets, now, monkeypatch):
    monkeypatch.setattr(socket, "if_nametoindex", lambda _name: 17)
    edge = edge_of("fe80::1", MASTER, interface="eth9")
    edge.tick(RawClocks())
    assert set(sockets) == {
        (family, port) for family in (socket.AF_INET, socket.AF_INET6)
        for port in (EVENT_PORT, GENERAL_PORT)
    }  # fmt: skip
    ((_, target),) = sockets[socket.AF_INET6, GENERAL_PORT].sent
    assert target == ("fe80::1", GENERAL_PORT, 0, 17)
    head = Header(PORT, 1)
    said = encode(Announce(head, 37, 128, 6, 0xFE, 0, 128, PORT.clock, 0))
    sockets[socket.AF_INET6, GENERAL_PORT].came += [
        OSError(errno.ECONNREFUSED, "of an earlier packet"),
        (said, [], 0, ("fe80::1%eth9", 320, 0, 17)),
    ]
    edge.tick(RawClocks())
    assert edge.client.masters[0].said is not None
    assert edge.refused() == {"unknown sender": 0}
