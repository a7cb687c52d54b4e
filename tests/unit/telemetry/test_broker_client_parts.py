"""The pure parts of the connection to the broker: backoff, newest states, replays, settings."""

import asyncio
import errno
import random
import socket
import ssl
from pathlib import Path
from types import SimpleNamespace

import aiomqtt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.broker.backoff import FullJitter
from telemetry.broker.client import BrokerClient
from telemetry.broker.ending import is_absent
from telemetry.broker.guard import LIVES, ReplayGuard, TooManyTopicsError
from telemetry.broker.inbox import MAX_AHEAD, MAX_EVENTS, Inbox
from telemetry.broker.interface import MessageFactory
from telemetry.broker.latest import LatestStates
from telemetry.broker.settings import (
    BrokerSettings,
    BrokerSettingsError,
    needs_tls,
    plain_address,
)
from telemetry.broker.tls import tls_context
from telemetry.messages.envelope import BadMessageError, Message, Sender
from telemetry.messages.topics import Kind, Topic

A, B = Topic(Kind.HOST_DOCUMENT, "a"), Topic(Kind.HOST_DOCUMENT, "b")


@given(st.floats(0, 0.999), st.integers(1, 60))
def test_pauses_grow_to_a_limit_and_are_spread_from_zero(random, failures):
    backoff = FullJitter(lambda: random, base_s=0.25, cap_s=10)
    pauses = [backoff.next_s() for _ in range(failures)]
    assert pauses == [random * min(10, 0.25 * 2**n) for n in range(failures)]
    backoff.succeeded()
    assert backoff.next_s() == random * 0.25


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.sampled_from([A, B]), st.integers(0, 3)),
            st.tuples(st.just("clear"), st.sampled_from([A, B]), st.none()),
            st.tuples(st.just("take"), st.none(), st.none()),
            st.tuples(st.just("ack"), st.sampled_from([A, B]), st.none()),
            st.tuples(st.just("lost"), st.none(), st.none()),
        )
    )
)
def test_the_broker_ends_with_the_newest_state_of_each_topic(steps):
    """Whatever happens in between: at most one message of a topic is under way, and it settles."""
    states, wanted, broker, under_way = LatestStates(), {}, {}, {}

    def take():
        if (due := states.take()) is not None:
            topic, data = due
            assert topic not in under_way
            under_way[topic] = data
        return due

    def acknowledge(topic):
        if topic in under_way:
            broker[topic] = under_way.pop(topic)
            states.acknowledged(topic)

    for what, topic, value in steps:
        if what == "set":
            changed = states.set(topic, {"v": value})
            assert changed or wanted[topic] == {"v": value}
            wanted[topic] = {"v": value}
        elif what == "clear":
            states.set(topic, None)
            wanted[topic] = None
        elif what == "take":
            take()
        elif what == "ack":
            acknowledge(topic)
        else:
            under_way.clear()
            states.connection_lost()
    for _ in range(10):
        take()
        for topic in list(under_way):
            acknowledge(topic)
    assert {t: d for t, d in broker.items() if d} == {t: d for t, d in wanted.items() if d}
    assert states.settled
    assert len(states) == sum(data is not None for data in wanted.values())


def message(sequence, life="x", topic=A):
    return Message(topic, Sender("boot", life), sequence)


def test_older_messages_and_ended_lives_are_replays():
    guard = ReplayGuard()

    def take(*arguments, **options):
        one = message(*arguments, **options)
        new = guard.is_new(one)
        guard.note(one)
        return new

    assert take(5)
    assert not guard.is_new(message(5))
    assert guard.is_new(message(6)), "asking changes nothing"
    assert take(6)
    with pytest.raises(BadMessageError, match="sequence 5, 6 is known"):
        guard.is_new(message(5))
    assert take(1, topic=B), "another topic"
    assert take(1, life="y")
    with pytest.raises(BadMessageError, match="life x, which has ended"):
        guard.is_new(message(9))
    for number in range(2 * LIVES):
        assert take(1, life=f"z{number}")
    with pytest.raises(BadMessageError, match="has ended"):
        guard.is_new(message(9, life="z5" if LIVES > 28 else f"z{2 * LIVES - 2}"))


def job_of(host, name):
    return Topic(Kind.HOST_JOB, host, name)


def test_each_owner_has_its_own_share_of_names():
    guard = ReplayGuard(most_names=2)
    for name in ("one", "two", "two"):
        guard.note(message(1, topic=job_of("a", name)))
    with pytest.raises(TooManyTopicsError, match="a has more than 2 topics"):
        guard.is_new(message(1, topic=job_of("a", "three")))
    for topic in (job_of("a", "one"), job_of("b", "one"), A, Topic(Kind.STOP)):
        assert guard.is_new(message(2, topic=topic)), "known, another's, or without a name"
    guard.forget(job_of("a", "one"))
    guard.forget(job_of("a", "never there"))
    assert guard.is_new(message(1, topic=job_of("a", "three")))
    assert guard.names() == {"a": 1}


def test_what_was_cleared_leaves_nothing():
    guard = ReplayGuard()
    for number in range(10_000):
        topic = job_of("a", f"j{number}")
        for life in ("x", "y"):
            assert guard.is_new(message(number, life, topic))
            guard.note(message(number, life, topic))
        guard.forget(topic)
    assert not guard.names()
    assert not guard._newest
    assert not guard._ended


def test_a_message_of_one_life_has_a_number_of_its_own():
    factory = MessageFactory(Sender("boot", "life"))
    made = [factory.make(topic, {}) for topic in (A, B, A)]
    assert [one.sequence for one in made] == [1, 2, 3]
    assert len({one.id for one in made}) == 3


@pytest.mark.parametrize(
    ("address", "needed"),
    [
        ("127.0.0.1", False), ("::1", False), ("10.1.2.3", False), ("172.31.0.1", False),
        ("192.168.1.1", False), ("fd00::1", False), ("fe80::1%eth0", False),
        ("169.254.1.1", False), ("::ffff:10.0.0.1", False),
        ("172.32.0.1", True), ("192.0.2.1", True), ("100.64.0.1", True), ("8.8.8.8", True),
        ("2001:db8::1", True), ("::ffff:8.8.8.8", True), ("198.18.0.1", True),
    ],
)  # fmt: skip
def test_which_addresses_need_tls(address, needed):
    assert needs_tls(address) is needed


def test_a_name_with_one_public_address_is_refused_without_tls():
    assert plain_address("b", ["10.0.0.1", "10.0.0.1", "::1"]) == ["10.0.0.1", "::1"]
    with pytest.raises(BrokerSettingsError, match=r"broker b \(8\.8\.8\.8\) is not on a loopback"):
        plain_address("b", ["10.0.0.1", "8.8.8.8"])
    with pytest.raises(BrokerSettingsError, match=r"broker 8\.8\.8\.8 is not"):
        plain_address("8.8.8.8", ["8.8.8.8"])
    with pytest.raises(BrokerSettingsError, match="has no address"):
        plain_address("b", [])


def test_port_and_tls_follow_from_the_files(tmp_path):
    assert BrokerSettings("b").effective_port == 1883
    assert BrokerSettings("b", ca_file=tmp_path).effective_port == 8883
    assert BrokerSettings("b", 1, ca_file=tmp_path).effective_port == 1


@pytest.mark.parametrize(
    ("content", "wanted"),
    [(b"secret\nmore\n", "secret"), (b"a b\r\n", "a b"), (b"\n", None), (b"", None),
     (b"\xff\n", None), (b"x" * 5000, None)],
)  # fmt: skip
def test_the_password_is_the_first_line_of_its_file(tmp_path, content, wanted):
    file = tmp_path / "password"
    file.write_bytes(content)
    settings = BrokerSettings("b", username="u", password_file=file)
    if wanted is None:
        with pytest.raises(BrokerSettingsError, match=str(file)):
            settings.password()
    else:
        assert settings.password() == wanted


def test_a_file_that_is_missing_or_makes_no_sense_is_named(tmp_path):
    missing, bad = tmp_path / "missing", tmp_path / "bad"
    bad.write_text("no certificate")
    with pytest.raises(BrokerSettingsError, match=f"{missing}: No such file"):
        BrokerSettings("b", password_file=missing).password()
    with pytest.raises(BrokerSettingsError, match=f"{missing}: No such file"):
        tls_context(BrokerSettings("b", ca_file=missing))
    with pytest.raises(BrokerSettingsError, match=f"{bad}: no certificates"):
        tls_context(BrokerSettings("b", ca_file=bad))
    some = Path("/etc/ssl/certs/ca-certificates.crt")
    if some.exists():
        with pytest.raises(BrokerSettingsError, match=f"{bad}, key in the same file"):
            tls_context(BrokerSettings("b", ca_file=some, cert_file=bad))


@pytest.mark.parametrize("blocking", [True, False])
def test_a_socket_whose_handshake_fails_is_closed(blocking):
    """The MQTT library forgets it: only the garbage collector would close it."""
    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(blocking)
        wrapped = tls_context(BrokerSettings("b")).wrap_socket(
            ours, server_hostname="b", do_handshake_on_connect=False
        )
        if not blocking:
            with pytest.raises(ssl.SSLWantReadError):
                wrapped.do_handshake()
            assert wrapped.fileno() >= 0, "it is under way"
        theirs.sendall(b"this is no TLS at all\n")
        with pytest.raises(ssl.SSLError):
            wrapped.do_handshake()
        assert wrapped.fileno() == -1


def received(name, payload=b""):
    return aiomqtt.Message(name, payload, 1, False, 1, None)


async def test_of_a_retained_topic_only_the_newest_waits():
    inbox = Inbox(lambda name: name.startswith("state"))
    for name, payload in (("state/a", b"1"), ("event", b"2"), ("state/a", b"3"), ("event", b"4")):
        inbox.put_nowait(received(name, payload))
    got = [(await inbox.get()).payload for _ in range(inbox.qsize())]
    assert got == [b"3", b"2", b"4"]
    assert [one.payload for one in inbox.superseded] == [b"1"]
    assert inbox.empty()
    with pytest.raises(asyncio.QueueEmpty):
        inbox.get_nowait()


async def test_urgent_messages_overtake_others_and_do_not_stop_them():
    inbox = Inbox(lambda _: True, lambda name: name.startswith("urgent"))
    for number in range(3):
        inbox.put_nowait(received(f"other/{number}"))
    for number in range(MAX_AHEAD + 2):
        inbox.put_nowait(received(f"urgent/{number}"))
    inbox.put_nowait(received("urgent/0", b"newer"))
    assert inbox.qsize() == 3 + MAX_AHEAD + 2
    got = [await inbox.get() for _ in range(inbox.qsize())]
    names = [one.topic.value.partition("/")[0] for one in got]
    assert names == ["urgent"] * MAX_AHEAD + ["other"] + ["urgent"] * 2 + ["other"] * 2
    assert got[0].payload == b"newer"
    assert inbox.empty()
    inbox.put_nowait(received("urgent/alone"))
    assert not inbox.empty()
    assert (await inbox.get()).topic.value == "urgent/alone"


async def test_events_beyond_the_limit_push_out_the_oldest():
    inbox = Inbox(lambda _: False)
    for number in range(MAX_EVENTS + 2):
        inbox.put_nowait(received("event", b"%d" % number))
    assert (inbox.qsize(), inbox.dropped) == (MAX_EVENTS, 2)
    assert (await inbox.get()).payload == b"2"
    inbox.put_nowait(received("event", b"more"))
    assert inbox.dropped == 2


async def test_what_is_not_admitted_takes_no_memory():
    asked = []

    def admits(name, size):
        asked.append((name, size))
        return size < 2

    inbox = Inbox(lambda _: True, admits=admits)
    inbox.put_nowait(received("a", b"12"))
    assert inbox.empty()
    inbox.put_nowait(received("b", b"1"))
    inbox.put_nowait(received("b", b"123"))
    assert inbox.qsize() == 1
    assert (await inbox.get()).payload == b"1"
    assert inbox.superseded == []
    assert asked == [("a", 2), ("b", 1), ("b", 3)]


@pytest.mark.parametrize("absent", [True, False])
def test_a_broker_that_was_gone_for_an_hour_is_found_within_seconds_and_was_left_in_peace(absent):
    chosen = random.Random(1)
    for _ in range(200):
        backoff, now, attempts = FullJitter(chosen.random), 0.0, 0
        while now < 3600.0:
            last, now, attempts = now, now + backoff.next_s(absent=absent), attempts + 1
        assert now - last <= (2.0 if absent else 10.0)
        assert attempts < 3600 * (1.1 if absent else 1 / 3)
    pauses = [backoff.next_s() for _ in range(100)]
    assert max(pauses) > 5.0, "one that is there and does not answer is left in peace at once"


@pytest.mark.parametrize(
    ("number", "absent"),
    [(errno.ECONNREFUSED, True), (errno.EHOSTUNREACH, True), (errno.ETIMEDOUT, False)],
)
def test_a_broker_that_is_not_there_is_none_that_is_slow(number, absent):
    """The library raises its own error while it handles the system's."""
    assert is_absent(OSError(number, "")) is absent
    with pytest.raises(aiomqtt.MqttError) as caught:
        connect_of_the_library(OSError(number, ""))
    assert is_absent(caught.value) is absent
    assert not is_absent(aiomqtt.MqttError("Operation timed out"))


def connect_of_the_library(error):
    try:
        raise error
    except OSError as error:
        raise aiomqtt.MqttError(str(error)) from None


async def test_the_pauses_are_those_of_a_broker_that_is_not_there():
    """Nobody listens at a port that is taken."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    told, paused = asyncio.get_running_loop().create_future(), []
    client = BrokerClient(
        BrokerSettings("127.0.0.1", taken.getsockname()[1]), client_id="fabricd-a",
        factory=MessageFactory(Sender("boot", "life")), status=None, subscriptions=[],
        receiver=SimpleNamespace(connection_changed=lambda **_: None),
    )  # fmt: skip

    def next_s(*, absent=False):
        paused.append(absent)
        told.set_result(None)
        return 3600.0

    client._backoff = SimpleNamespace(next_s=next_s, succeeded=lambda: None)
    running = asyncio.create_task(client.run())
    await asyncio.wait_for(told, 60)
    running.cancel()
    taken.close()
    assert paused == [True]
