"""The netlink socket over a pair of datagram sockets, with the kernel's part played by the test."""

import socket
import struct

import pytest

from telemetry.counters import nlsocket
from telemetry.counters.nlattr import HEADER, NLMSG_DONE, NLMSG_ERROR
from telemetry.counters.polled import SourceOff
from telemetry.counters.types import CounterError


class Paired(nlsocket.Netlink):
    """A socket whose other end is `kernel`."""

    def __init__(self):
        super().__init__(nlsocket.NETLINK_GENERIC)
        self.opened = 0
        self.ends = []

    def _open(self):
        if self._socket is None:
            self._socket, self.kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.ends.append(self.kernel)
            self._socket.settimeout(nlsocket.TIMEOUT_S)
            self.opened += 1
        return self._socket

    def say(self, *messages):
        """One datagram of (type, sequence, payload)."""
        self._open()
        data = b""
        for kind, sequence, payload in messages:
            data += HEADER.pack(HEADER.size + len(payload), kind, 0, sequence, 0) + payload
        self.kernel.send(data)


@pytest.fixture
def link(monkeypatch):
    monkeypatch.setattr(nlsocket, "TIMEOUT_S", 0.05)
    made = Paired()
    yield made
    made.close()
    for end in made.ends:
        end.close()


def test_the_answer_to_this_request_only(link):
    link.say((20, 0, b"late"))
    link.say((20, 1, b"mine"))
    (answer,) = link.ask(7, b"body")
    assert bytes(answer.payload) == b"mine"
    length, kind, flags, sequence, port = HEADER.unpack_from(link.kernel.recv(100))
    assert (length, kind, flags, sequence, port) == (20, 7, nlsocket.NLM_F_REQUEST, 1, 0)


def test_a_dump_ends_with_done(link):
    link.say((20, 1, b"aaaa"), (20, 1, b"bbbb"))
    link.say((20, 1, b"cccc"))
    link.say((NLMSG_DONE, 1, struct.pack("=i", 0)))
    assert [bytes(m.payload) for m in link.ask(7, b"", dump=True)] == [b"aaaa", b"bbbb", b"cccc"]


def test_a_refusal_is_its_errno(link):
    link.say((NLMSG_ERROR, 1, struct.pack("=i", -95)))
    with pytest.raises(OSError, match="not supported") as caught:
        link.ask(7, b"")
    assert caught.value.errno == 95
    assert link.opened == 1  # the socket is as good as before


def test_no_answer_in_time_and_then_another_socket(link):
    with pytest.raises(TimeoutError):
        link.ask(7, b"")
    link.say((20, 2, b"next"))
    assert bytes(link.ask(7, b"")[0].payload) == b"next"
    assert link.opened == 2


def test_garbage_is_an_error_and_then_another_socket(link):
    link._open()
    link.kernel.send(b"\x01\x02\x03")
    with pytest.raises(CounterError, match="netlink"):
        link.ask(7, b"")
    link.say((20, 2, b""))
    assert len(link.ask(7, b"")) == 1


def test_a_family_is_looked_up_once(link):
    family = struct.pack("=BBH", 1, 2, 0) + struct.pack("=HHHH", 6, 1, 33, 0)
    link.say((16, 1, family))
    link.say((33, 2, b"yes!"))
    link.say((33, 3, b"yes!"))
    for _ in range(2):
        assert bytes(link.generic("ethtool", b"")[0].payload) == b"yes!"
    assert HEADER.unpack_from(link.kernel.recv(100))[1] == 16
    assert HEADER.unpack_from(link.kernel.recv(100))[1] == 33


def test_a_kernel_without_the_family(link):
    link.say((NLMSG_ERROR, 1, struct.pack("=i", -2)))
    with pytest.raises(SourceOff, match="no ethtool netlink"):
        link.generic("ethtool", b"")


def test_a_kernel_without_the_protocol():
    with pytest.raises(SourceOff, match="this kernel has no netlink 31"):
        nlsocket.Netlink(31).ask(1, b"")
