"""What a broker takes: its announced limits, and packets at which it ends connections."""

from types import SimpleNamespace

import aiomqtt
import pytest
from aiomqtt.client import mqtt  # paho's, which it takes
from aiomqtt.exceptions import MqttConnectError
from hypothesis import given
from hypothesis import strategies as st

from telemetry.broker.latest import LatestStates
from telemetry.broker.library_hooks import hook, refused_connection
from telemetry.broker.limits import (
    FLOOR_BYTES,
    HOLD_S,
    LOSSES,
    SOON_S,
    BrokerLimits,
    PacketSizes,
    PacketTooLargeError,
    publish_bytes,
    subscribe_bytes,
)
from telemetry.messages.topics import Kind, Topic

PacketTypes, Properties = mqtt.PacketTypes, mqtt.Properties
ReasonCode, SubscribeOptions = mqtt.ReasonCode, mqtt.SubscribeOptions


def connack(**properties):
    made = Properties(PacketTypes.CONNACK)
    for name, value in properties.items():
        setattr(made, name, value)
    return made


def test_a_connack_without_properties_announces_no_limit():
    limits = BrokerLimits.of_connack(connack())
    assert limits == BrokerLimits()
    assert (limits.unusable, limits.notes(5, 100), limits.keepalive(5)) == ("", [], 5)


def test_each_announced_limit_is_read_and_said_with_its_number():
    limits = BrokerLimits.of_connack(
        connack(MaximumPacketSize=8192, ReceiveMaximum=4, ServerKeepAlive=60,
                SessionExpiryInterval=30)
    )  # fmt: skip
    assert limits == BrokerLimits(8192, 4, keepalive_s=60, session_s=30)
    text = " ".join(limits.notes(5, 604_800))
    for part in ("8192 B at most", "4 unacknowledged", "60 s, not 5 s", "after 90 s", "30 s, not"):
        assert part in text
    assert "session" not in " ".join(limits.notes(5, None)), "no session was asked for"


@pytest.mark.parametrize(
    ("properties", "word"),
    [({"MaximumQoS": 0}, "QoS 0"), ({"RetainAvailable": 0}, "Retain Available 0")],
)
def test_a_broker_without_qos_1_or_retained_messages_is_refused_by_name(properties, word):
    assert word in BrokerLimits.of_connack(connack(**properties)).unusable


@pytest.mark.parametrize(
    ("server_s", "used_s", "note"),
    [(0, 5, "reports no client as lost"), (60, 5, "after 90 s"), (2, 2, ""), (None, 5, "")],
)
def test_a_dead_connection_is_noticed_whatever_keepalive_the_broker_sets(server_s, used_s, note):
    limits = BrokerLimits(keepalive_s=server_s)
    assert limits.keepalive(5) == used_s
    assert note in " ".join(limits.notes(5, None))
    assert bool(note) == bool(limits.notes(5, None))


async def test_the_library_keeps_to_the_limits_of_the_connack():
    client = aiomqtt.Client("b", identifier="x", protocol=aiomqtt.ProtocolVersion.V5, keepalive=5)
    paho, seen, refused = client._client, [], []
    hook(client, 5, seen.append, lambda name, reason: refused.append((name, reason)))
    paho._keepalive = 0  # As paho does at a Server Keep Alive of 0, before the callback.
    properties = connack(ReceiveMaximum=4, ServerKeepAlive=0)
    flags = SimpleNamespace(session_present=False)
    paho.on_connect(paho, None, flags, ReasonCode(PacketTypes.CONNACK), properties)
    assert seen == [BrokerLimits(in_flight=4, keepalive_s=0)]
    assert (paho._max_inflight_messages, paho._keepalive) == (4, 5)
    info = paho.publish("some/topic", b"x", 1)
    no_puback = ReasonCode(PacketTypes.PUBACK, "Quota exceeded")
    paho.on_publish(paho, None, info.mid, no_puback, None)
    assert refused == [("some/topic", "Quota exceeded")]
    paho.on_connect(paho, None, flags, ReasonCode(PacketTypes.CONNACK), connack())
    assert paho._max_inflight_messages == 20


def test_a_refused_connect_names_the_limit():
    for number, word in ((0x9B, "QoS 0"), (0x9A, "Retain Available 0"), (0x87, "")):
        code = ReasonCode(PacketTypes.CONNACK, identifier=number)
        found = refused_connection(MqttConnectError(code))
        assert word in found
        assert bool(word) == bool(found)
    assert refused_connection(OSError("gone")) == ""


@pytest.mark.parametrize("five", [True, False])
@pytest.mark.parametrize("length", [0, 1, 80, 95, 96, 97, 98, 99, 100, 16_350, 16_360, 30_000])
def test_the_size_of_a_packet_is_that_of_the_library(five, length):
    paho = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, "x", protocol=mqtt.MQTTv5 if five else mqtt.MQTTv311
    )
    packets = []
    paho._sock = SimpleNamespace(fileno=lambda: -1)
    paho._packet_queue = lambda _command, packet, *_: packets.append(bytes(packet)) or 0
    topic, payload = "fabric/v1/host/h0/job/\u00e9", b"x" * length
    paho._send_publish(1, topic.encode(), payload, 1, True)
    filters = [topic, "y" * (1 + length % 200)]
    qos = SubscribeOptions(qos=1) if five else 1
    paho._send_subscribe(False, [(one.encode(), qos) for one in filters])
    paho._sock = None
    sizes = [publish_bytes(topic, payload, five=five), subscribe_bytes(filters, five=five)]
    assert sizes == [len(packet) for packet in packets]


def test_a_packet_over_the_announced_size_is_refused_with_both_sizes():
    sizes = PacketSizes()
    sizes.connected(8192)
    sizes.check(8192, 0.0)
    with pytest.raises(PacketTooLargeError, match=r"8193 B.*8192 B") as caught:
        sizes.check(8193, 0.0)
    assert (caught.value.size, caught.value.limit, caught.value.announced) == (8193, 8192, True)
    sizes.connected(None)
    sizes.check(1 << 20, 0.0)


class Broker:
    """One that ends the connection at a packet over ``limit`` and announces nothing."""

    def __init__(self, limit, sizes, now=1e6):
        self.limit, self.sizes, self.now = limit, sizes, now
        self.losses = 0

    def connection(self, wanted):
        """Send packets of these sizes until one ends the connection; what was refused here."""
        self.sizes.connected(None)
        refused = []
        for number, size in enumerate(wanted):
            self.now += 0.01
            try:
                self.sizes.check(size, self.now)
            except PacketTooLargeError:
                refused.append(size)
                continue
            self.sizes.sent(number, size, self.now)
            if size > self.limit:
                self.losses += 1
                self.now += 0.1
                self.sizes.lost(self.now)
                return None
            self.sizes.answered(number)
        return refused


def test_a_packet_at_which_connections_end_is_held_back_and_tried_again():
    sizes = PacketSizes()
    broker = Broker(8192, sizes)
    for _ in range(LOSSES):
        assert broker.connection([300, 700, 30_000]) is None
    assert broker.connection([300, 700, 30_000, 40_000]) == [30_000, 40_000]
    with pytest.raises(PacketTooLargeError, match=r"30000 B.*3 connections.*had 700 B"):
        sizes.check(30_000, broker.now)
    assert broker.connection([8_000]) == [], "smaller ones are not held back"
    hold = HOLD_S[0]
    for _ in range(3):  # One try each time, and longer and longer pauses.
        broker.now += hold
        assert broker.connection([30_000]) is None
        assert broker.connection([30_000]) == [30_000]
        hold = min(2 * hold, HOLD_S[1])
    assert broker.losses == LOSSES + 3
    broker.limit = 1 << 20
    broker.now += hold
    assert broker.connection([30_000]) == [], "the broker takes more now"
    assert broker.connection([40_000]) == []


@given(
    st.integers(FLOOR_BYTES, 100_000),
    st.lists(st.integers(100, 120_000), min_size=1, max_size=6, unique=True),
)
def test_whatever_the_limit_all_that_fits_arrives_and_losses_end(limit, wanted):
    """States are sent smallest first where they are in question; see `LatestStates.take`."""
    sizes = PacketSizes()
    broker = Broker(limit, sizes)
    over = [size for size in wanted if size > limit]
    for _ in range(LOSSES * len(over) + 1):
        refused = broker.connection(sorted(wanted))
        if refused is not None:
            break
    assert refused == sorted(over)
    assert broker.losses == (LOSSES if over else 0)


@pytest.mark.parametrize(
    ("size", "later_s"), [(FLOOR_BYTES, 0.1), (30_000, SOON_S + 0.1)], ids=["small", "late"]
)
def test_connections_that_end_for_another_reason_hold_nothing_back(size, later_s):
    sizes, now = PacketSizes(), 1e6
    for _ in range(10):
        sizes.connected(None)
        sizes.sent("x", size, now)
        now += later_s
        assert sizes.lost(now) == set()
        sizes.check(size, now)


def test_a_large_packet_that_was_acknowledged_is_in_question_no_more():
    sizes = PacketSizes()
    for _ in range(LOSSES - 1):
        sizes.connected(None)
        sizes.sent("x", 30_000, 1.0)
        assert sizes.lost(1.1) == {"x"}
    sizes.connected(None)
    sizes.sent("x", 30_000, 2.0)
    sizes.answered("x")
    sizes.sent("y", 40_000, 2.0)
    assert sizes.lost(2.1) == {"y"}, "the first of three"
    sizes.check(40_000, 2.2)


def test_states_in_question_are_sent_alone_after_all_others():
    a, b, c = (Topic(Kind.HOST_DOCUMENT, name) for name in "abc")
    states = LatestStates()
    for topic in (a, b, c):
        states.set(topic, {"v": 1})
    late = {a, b}
    assert states.take(late)[0] == c
    assert states.take(late) is None, "c is under way"
    states.acknowledged(c)
    assert states.take(late)[0] == a
    assert states.take(late) is None
    states.set(c, {"v": 2})
    assert states.take(late)[0] == c, "others go on"
    states.acknowledged(a)
    states.acknowledged(c)
    assert states.take(late)[0] == b
