"""The metrics endpoint under honest and hostile clients, and without its port."""

import asyncio
import contextlib
import gzip
import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry import http_server
from telemetry.events import LinkState
from telemetry.http_server import HttpError, HttpServer, Reply, parse_request
from telemetry.listen import is_at
from telemetry.metrics_server import CYCLE_S, MetricsServer, bind
from telemetry.snapshot import DaemonSnapshot, HostSnapshot, LinkSnapshot, ProberSnapshot

LONG_S = 60
READY = HostSnapshot(
    "h0",
    links=(LinkSnapshot("rail0", 0, LinkState.UP),),
    prober=ProberSnapshot(up=True),
    daemon=DaemonSnapshot(last_cycle_wall_s=1.0),
)


class World:
    """A server of a snapshot that a test may change."""

    def __init__(self, **arguments):
        self.snapshot, self.age, self.states = READY, 0.0, []
        self.server = MetricsServer(
            arguments.pop("listen", "127.0.0.1:0"),
            self.source,
            cycle_age_s=lambda: self.age,
            told=self.states.append,
            retry_s=(0.01, 0.05),
            **arguments,
        )
        self.server.start(LONG_S)

    async def source(self):
        return self.snapshot

    def get(self, path, method="GET", **headers):
        client = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=LONG_S)
        with contextlib.closing(client):
            client.request(method, path, headers=headers)
            reply = client.getresponse()
            return reply.status, reply.read(), reply.headers

    def raw(self, data):
        with socket.create_connection(("127.0.0.1", self.server.port), LONG_S) as sock:
            sock.sendall(data)
            return b"".join(iter(lambda: sock.recv(65536), b""))


@pytest.fixture
def world():
    made = World()
    yield made
    made.server.close()


def tasks():
    return len(list(Path("/proc/self/task").iterdir()))


def test_three_paths_and_nothing_else(world):
    status, body, headers = world.get("/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b'fabricd_link_state{link="rail0",rail="0"} 1.0' in body
    assert world.get("/metrics?x=1")[0] == 200
    assert world.get("/healthz")[:2] == (200, b"ok\n")
    assert world.get("/readyz")[:2] == (200, b"ready\n")
    for path in ("/", "/-/ready", "/metrics/", "/metric", "/favicon.ico", "//metrics"):
        assert world.get(path)[0] == 404, path
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PROPFIND"):
        status, _, headers = world.get("/metrics", method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD"), method
    status, body, headers = world.get("/metrics", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 1000


def test_the_format_is_the_one_that_a_scraper_asks_for(world):
    plain = world.get("/metrics")[1]
    status, zipped, headers = world.get("/metrics", **{"Accept-Encoding": "gzip"})
    assert (status, headers["Content-Encoding"]) == (200, "gzip")
    assert gzip.decompress(zipped) == plain
    status, body, headers = world.get(
        "/metrics", Accept="application/openmetrics-text; version=1.0.0"
    )
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_health_is_the_daemons_loop(world):
    world.age = CYCLE_S + 0.1
    assert world.get("/healthz")[:2] == (503, b"no cycle for 10.1 s\n")
    assert world.get("/readyz")[:2] == (503, b"no cycle for 10.1 s\n")
    assert world.get("/metrics")[0] == 200
    world.age = None
    assert world.get("/healthz")[:2] == (503, b"no cycle yet\n")


def test_readiness_says_all_that_is_missing(world):
    world.snapshot = HostSnapshot("h0", daemon=DaemonSnapshot(config_ok=False))
    status, body, _ = world.get("/readyz")
    assert (status, body.decode().splitlines()) == (
        503,
        [
            "nothing was evaluated yet",
            "the prober is not up",
            "the last reload of the configuration was refused",
        ],
    )
    assert world.get("/healthz")[0] == 200


def test_a_source_that_fails_is_an_answer(world):
    async def fails():
        raise ValueError

    world.server._source = fails
    assert world.get("/metrics")[:2] == (500, b"internal error: ValueError\n")
    assert world.get("/healthz")[0] == 200


def test_three_hundred_half_sent_requests_cost_no_thread_and_no_scrape(world):
    before = tasks()
    held = []
    try:
        for number in range(300):
            sock = socket.create_connection(("127.0.0.1", world.server.port), LONG_S)
            sock.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * number)
            held.append(sock)
            if number % 50 == 0:
                assert world.get("/metrics")[0] == 200
        for path in ("/metrics", "/healthz", "/readyz"):
            assert world.get(path)[0] == 200
        assert tasks() == before
        assert len(world.server._server._connections) <= http_server.MAX_CONNECTIONS
        assert world.server.refused >= 300 - http_server.MAX_CONNECTIONS
    finally:
        for sock in held:
            sock.close()


async def served(**limits):
    async def big(_request):
        return Reply(200, b"x" * 50_000_000)

    server = HttpServer({"/big": big}, **limits)
    sock = bind("127.0.0.1:0")
    await server.start(sock)
    return server, sock.getsockname()[1]


async def test_a_header_that_never_ends_is_ended():
    server, port = await served(header_s=0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /big HTTP/1.1\r\n")
    reply = await asyncio.wait_for(reader.read(), LONG_S)
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert server.refused == {"timeout": 1}
    writer.close()
    await server.stop()


async def test_a_reply_that_nobody_reads_is_ended():
    server, port = await served(write_s=0.05)
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.transport.pause_reading()
    writer.write(b"GET /big HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(LONG_S):
        while server.refused != {"timeout": 1} or server._connections:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    writer.close()
    await server.stop()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\n" + b"X: " + b"x" * 9000 + b"\r\n\r\n", 431),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nno field\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n folded: x\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.0\r\n\r\n", 200),
    ],
)
def test_what_is_no_request_is_said_to_be_none(world, data, status):
    assert world.raw(data).startswith(f"HTTP/1.1 {status} ".encode())
    assert world.get("/healthz")[0] == 200


@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda s: f"GET /{s} HTTP/1.1".encode()))
def test_no_bytes_break_the_parser(data):
    try:
        request = parse_request(data + b"\r\n\r\n")
    except HttpError as error:
        assert error.status == 400  # noqa: PT017
    else:
        assert "?" not in request.path
        assert "\r" not in "".join(request.headers.values())


def test_a_port_that_is_taken_is_waited_for():
    squatter = bind("127.0.0.1:0")
    port = squatter.getsockname()[1]
    world = World(listen=f"127.0.0.1:{port}")
    try:
        state = world.states[0]
        assert (state.bound, state.reason, state.failures) == (False, "Address already in use", 1)
        assert str(state) == f"NOT BOUND to 127.0.0.1:{port}: Address already in use"
        squatter.close()
        deadline = time.monotonic() + LONG_S
        while not world.server.state.bound:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert str(world.server.state) == f"on 127.0.0.1:{port}"
        assert world.get("/healthz")[0] == 200
    finally:
        world.server.close()
    bind(f"127.0.0.1:{port}").close()  # It is free again.


def test_no_thread_no_endpoint_and_nothing_raised(monkeypatch):
    def refused(_self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    world = World()
    assert str(world.server.state).endswith("can't start new thread")
    world.server.close()


def test_ipv6():
    world = World(listen="[::1]:0")
    try:
        with socket.create_connection(("::1", world.server.port), LONG_S) as sock:
            sock.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert sock.recv(100).startswith(b"HTTP/1.1 200 ")
    finally:
        world.server.close()


def test_an_inherited_socket_is_served_and_stays_with_its_owner():
    owner = bind("127.0.0.1:0")
    listen = f"127.0.0.1:{owner.getsockname()[1]}"
    for _ in range(2):  # A restart: whoever connects meanwhile waits in the owner's queue.
        world = World(listen=listen, inherited=owner.dup())
        assert world.server.state.bound
        assert world.server.state.inherited
        assert world.get("/healthz")[0] == 200
        world.server.close()
        with pytest.raises(OSError, match="in use"):
            bind(listen)
        early = socket.create_connection(owner.getsockname(), LONG_S)
        early.close()
    owner.close()


def test_only_a_socket_at_the_configured_address_is_ours():
    with bind("127.0.0.1:0") as sock:
        port = sock.getsockname()[1]
        assert is_at(sock, f"127.0.0.1:{port}")
        assert is_at(sock, f"localhost:{port}")
        for other in (f"0.0.0.0:{port}", f"127.0.0.1:{port % 65535 + 1}", f"[::1]:{port}"):
            assert not is_at(sock, other)


def test_an_inherited_socket_is_served_for_a_name_of_its_address_also_if_known_late(monkeypatch):
    owner = bind("127.0.0.1:0")
    port = owner.getsockname()[1]
    real, calls = socket.getaddrinfo, []

    def late(host, *arguments, **named):
        calls.append(host)
        if len(calls) == 1:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return real("127.0.0.1", *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", late)
    world = World(listen=f"node17:{port}", inherited=owner.dup())
    try:
        deadline = time.monotonic() + LONG_S
        while not world.server.state.bound:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert world.server.state.inherited
        assert world.states[0].reason == "Temporary failure in name resolution"
        assert set(calls) == {"node17"}
    finally:
        world.server.close()
        owner.close()


def test_an_address_that_the_inherited_socket_keeps_from_us_says_which_and_what_to_do():
    owner = bind("127.0.0.1:0")
    port = owner.getsockname()[1]
    world = World(listen=f"0.0.0.0:{port}", inherited=owner.dup())
    try:
        state = world.states[0]
        assert not state.bound
        assert not state.inherited
        assert state.reason == (
            f"Address already in use: fabricd-metrics.socket has 127.0.0.1:{port}; "
            "tell it the same address (docs/reference/metrics.md)"
        )
    finally:
        world.server.close()
        owner.close()


PASSED = """
import os, socket, sys
from telemetry.service.systemd_notify import passed_sockets
os.environ["LISTEN_PID"] = {pid}
found = passed_sockets()
print(sorted(found), [s.get_inheritable() for s in found.values()],
      sorted(k for k in os.environ if k.startswith("LISTEN_")), passed_sockets())
"""


@pytest.mark.parametrize(
    ("pid", "wanted"),
    [("str(os.getpid())", "['metrics'] [False] [] {}"), ('"1"', "[] [] [] {}")],
)
def test_sockets_of_systemd_are_taken_by_name_once(pid, wanted, tmp_path):
    plain = socket.socket()  # does not listen
    file = os.open(tmp_path / "x", os.O_CREAT | os.O_RDWR, 0o600)
    with bind("127.0.0.1:0") as listening, plain:

        def pass_on():
            for number, fd in enumerate((listening.fileno(), plain.fileno(), file)):
                os.dup2(os.dup(fd), 20 + number)
            for number in range(3):
                os.dup2(20 + number, 3 + number)

        done = subprocess.run(
            [sys.executable, "-c", PASSED.format(pid=pid)],
            env=os.environ | {"LISTEN_FDS": "3", "LISTEN_FDNAMES": "metrics:plain:file"},
            preexec_fn=pass_on, close_fds=False, capture_output=True, text=True,
            timeout=LONG_S, check=False,
        )  # fmt: skip
    os.close(file)
    assert done.stdout.strip() == wanted, done.stderr
