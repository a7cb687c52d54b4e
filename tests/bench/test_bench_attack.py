"""The parts of ``bench attack`` that need no lab: packets, the virtual site, what rows say."""

import asyncio
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.attack import local, mqtt, names, storm_client
from bench.attack.storm_worker import states_of
from bench.attack.virtual_site import VirtualSite
from compute.name_budget import HOST_BURST
from fabricd.escalate.service import Escalation
from telemetry.broker.interface import MessageFactory
from telemetry.broker.settings import BrokerSettings
from telemetry.messages.envelope import Sender, decode, encode
from telemetry.messages.topics import parse


@given(st.binary(max_size=300), st.integers(1, 65_535), st.lists(st.integers(1, 50), max_size=9))
def test_packets_are_found_however_they_arrive(payload, number, cuts):
    sent = mqtt.publish("a/b", payload, number) * 3 + mqtt.pingreq()
    packets, found, at = mqtt.Packets(), [], 0
    for cut in [*cuts, len(sent)]:
        found += packets.feed(sent[at : at + cut])
        at += cut
    assert [kind for kind, _, _ in found] == [mqtt.PUBLISH] * 3 + [mqtt.PINGREQ]
    assert mqtt.published(*found[0][1:]) == ("a/b", number, payload)


def test_a_host_of_the_storm_subscribes_to_what_fabricd_does(monkeypatch):
    """By the code that makes fabricd's own client."""

    made = {}
    monkeypatch.setattr(
        "fabricd.escalate.service.BrokerClient", lambda _, **rest: made.update(rest)
    )
    for discovers in (False, True):
        escalation = object.__new__(Escalation)
        escalation._settings, escalation._me = BrokerSettings("127.0.0.1"), "h1"
        escalation._discovery = object() if discovers else None
        escalation._factory = None
        escalation._make_client()
        assert storm_client.filters_of("h1", discovers=discovers) == made["subscriptions"]
        assert made["client_id"] == "fabricd-h1"


@pytest.fixture
def site(tmp_path):
    made = VirtualSite(tmp_path, names.places())
    yield made
    made.store.close()


def test_a_calm_site_moves_ranks_and_stops(site):
    names._form(site)
    moves = names._losses(site, None)
    assert max(moves.cycles) < 20
    assert moves.stopped_fences == 0
    assert site.fences == ["gpu-0002", "gpu-0003"]
    assert site.not_stored == 0


def test_a_flood_is_said_and_bounded(site):
    names._form(site)
    flood = names.Flood(site)
    flood.names(3 * int(HOST_BURST) // 2)
    flood.event()
    site.cycle()
    assert flood.counted == HOST_BURST
    assert site.intake.refused["share"] == flood.said - flood.counted
    assert site.store.events(10) or site.store.last.number > 1


async def test_a_connection_that_ends_at_once_is_waited_for_as_fabricd_does(monkeypatch, tmp_path):
    """Refused connections are asked for again within the bounds of the real policy."""
    waits = []
    monkeypatch.setattr(storm_client, "tls_context", lambda _: ssl.create_default_context())
    client = storm_client.StormClient(BrokerSettings("127.0.0.1", 1), "h1", states={}, filters=[])

    async def sleep(seconds, real=asyncio.sleep):
        waits.append(seconds)
        await real(0)

    monkeypatch.setattr(storm_client.asyncio, "sleep", sleep)
    task = asyncio.create_task(client.run(asyncio.Semaphore(1)))
    while client.attempts < 30 and not task.done():
        await asyncio.wait({task}, timeout=0.01)
    task.cancel()
    assert max(waits) <= 2.0, "nobody is there: at most so long"
    assert max(waits) > 0.5


def test_what_a_host_says_is_a_message_of_its_own():

    for topic, data in states_of(7, 20).items():
        message = MessageFactory(Sender("b", "i")).make(topic, data)
        assert decode(encode(message), parse(topic.text())).data == data


def test_a_pull_that_no_page_says_fails_the_row():
    calm = local.Seen([("h0:rail0", 1, 3.0)] * 30, [("status", 0.3)], [], [0.1], [60.0])
    seen = local.Seen(
        [*[("h0:rail0", 1, 3.0)] * 29, ("h0:rail1", 2, None)], [("status", 2.0)],
        ["status: no"], [1.5], [130.0], alive=False,
    )  # fmt: skip
    assert [row.ok for row in local._rows(calm, seen, "")] == [False] * 6
    assert [row.ok for row in local._rows(calm, calm, "")] == [True] * 6
