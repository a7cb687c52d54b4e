"""Explain: what it says is what decided."""

import io
import re
import time

import pytest
from rich.console import Console
from test_delay_path import Link
from whole_host import LINKS, WholeHost, link_tables

from fabricd.cli import show, show_explain, show_links
from fabricd.cli.tables import put_table
from fabricd.delay.condition import Seen
from fabricd.delay.view import PathPlace
from fabricd.detect.locate import Blame, Kind
from fabricd.detect.rules import RULES, Finding
from fabricd.links.machine import TRANSITIONS
from fabricd.probes.records import Direction
from fabricd.timeline.rows import located
from fabricd.views import report
from fabricd.views.explain import explain
from telemetry.events import LinkState as S


@pytest.fixture
async def whole(tmp_path):
    made = WholeHost(tmp_path, links=LINKS.replace("rail = 2\n", 'rail = 2\ngroup = "back"\n'))
    yield made
    made.close()


def said(whole, netdev="rail1"):
    return explain(whole.host, netdev, time.monotonic_ns())


def against(document):
    return [e["detector"] for e in document["evidence"] if e["against"]]


async def test_a_healthy_link(whole):
    document = said(whole)
    assert (document["state"], document["rule"]["name"]) == ("up", "healthy")
    assert against(document) == []
    assert document["steering"] == ["100 % follows from the state"]


async def test_a_link_that_probes_do_not_watch_is_not_called_healthy(whole):
    host = whole.host
    for seconds in (0, 11):  # there is no prober
        rows = host.detectors.probing.tick(
            host.prober.feed,
            None,
            host.engine,
            host.config,
            [None] * 3,
            (5 + seconds) * 10**9,
            peer_rails=frozenset(),
        )
    assert {row.link for row in rows} == {"rail0", "rail1", "rail2"}
    document = explain(host, "rail1", 17 * 10**9)
    assert (document["state"], document["rule"]["name"]) == ("up", "carrier-only")
    assert "nothing speaks against it" not in str(document)
    assert document["unwatched"] == "not probed for 12 s (no address), carrier only"
    assert [e["says"] for e in document["evidence"] if e.get("unwatched")] == [
        document["unwatched"]
    ]
    assert against(document) == [], "nor is that a fault"
    console = Console(file=io.StringIO(), width=200)
    show_explain.explain(console, document | {"history": []})
    assert "not probed for 12 s (no address), carrier only" in console.file.getvalue()
    status = report.status(host)
    assert set(status["unwatched"]) == {"rail0", "rail1", "rail2"}
    assert all(row["probe_state"] == "off" for row in report.links(host))


async def test_a_link_with_peers_that_loses_its_address_is_unbound(tmp_path):
    peer = '[[peers]]\nhost = "p"\naddresses = [{ rail = 1, address = "10.1.0.2" }]\n'
    whole = WholeHost(tmp_path, extra=peer)
    host = whole.host
    try:
        for seconds in (0, 11):
            host.detectors.probing.tick(
                host.prober.feed,
                None,
                host.engine,
                host.config,
                [None] * 3,
                (5 + seconds) * 10**9,
                peer_rails=host.settings.peers.rails_in_use,
            )
        assert [row["probe_state"] for row in report.links(host)] == ["off", "unbound", "off"]
        assert "(no address), carrier only" in explain(host, "rail1", 17 * 10**9)["unwatched"]
    finally:
        whole.close()


async def test_carrier_lost_then_held(whole):
    link = whole.link("rail1")
    link.carrier, link.pending_downs = False, 1
    whole.host.evaluator.step()
    document = said(whole)
    assert (document["rule"]["name"], document["reason"]) == ("carrier", "carrier lost")
    assert against(document) == ["carrier"]
    assert document["weight"] == 0
    link.carrier = True
    whole.host.evaluator.step()
    document = said(whole)
    assert document["rule"]["name"] == "hold-down"
    assert "hold_down_s = 2" in document["rule"]["parameters"]
    assert document["next"].startswith("PROBATION in ")
    assert document["damping"]["penalty"] > 900


async def test_a_counter_that_is_a_fault(whole):
    whole.link("rail1").counters = (Finding(RULES["tx_timeouts"], time.monotonic_ns(), 1.0),)
    whole.host.evaluator.step()
    document = said(whole)
    assert (document["state"], document["rule"]["name"]) == ("down", "counters")
    assert against(document) == ["counters"]
    whole.operate("detector_off", "counters", seconds=60, reason="", by="uid 9")
    assert said(whole)["state"] == "hold", "nothing is judged by them any more"


async def test_a_soft_counter_halves_it_and_a_window_says_not_now(whole):
    whole.link("rail1").counters = (Finding(RULES["symbol_errors"], time.monotonic_ns(), 20.0),)
    whole.host.evaluator.step()
    assert (said(whole)["weight"], said(whole)["rule"]["name"]) == (0.5, "counters")
    whole.link("rail0").counters = whole.link("rail1").counters
    whole.operate("open_window", "rail0", seconds=60, reason="", by="uid 9")
    assert said(whole, "rail0")["weight"] == 1


async def test_who_drained_it_and_what_ends_it(whole):
    whole.operate("drain", "rail1", seconds=60, reason="optics", by="uid 7")
    whole.operate("open_window", "host", seconds=60, reason="leaf", by="uid 8")
    whole.operate("detector_off", "loss", seconds=60, reason="", by="uid 9")
    document = said(whole)
    assert document["rule"]["name"] == "drained"
    assert "fabricctl undrain rail1" in document["next"]
    assert (document["drain"]["by"], document["drain"]["reason"]) == ("uid 7", "optics")
    assert [w["target"] for w in document["maintenance"]] == ["host"]
    assert document["detectors_off"] == ["loss"]
    assert next(e for e in document["evidence"] if e["detector"] == "loss")["off"]


async def test_the_last_one_is_kept_and_it_says_so(whole):
    for link in whole.host.engine.links:
        link.carrier = False
    whole.host.evaluator.step()
    document = said(whole)
    assert document["weight"] == 1
    assert document["steering"] == ["kept in full: no other link would carry"]


async def test_an_observing_link_says_what_it_would_weigh(whole):
    whole.host.publisher.modes.promote(whole.host.publisher.modes.promoted.OBSERVE, "back")
    whole.link("rail2").carrier = False
    whole.host.evaluator.step()
    assert said(whole, "rail2")["steering"] == ["mode observe: steered it would weigh 0 %"]


async def test_congestion_is_evidence_with_its_figures(whole, capsys):
    watch = whole.host.detectors.delay
    watch.view.configure([PathPlace(1, "rail1", f"h{n}", f"10.1.0.{n}") for n in (1, 2)])
    peers = [Link(1), Link(2)]
    for second in range(30):
        if second == 20:
            for peer in peers:
                peer.queue_out = lambda at: 300.0 + at % 400  # a queue breathes
        watch.view.feed(dict(enumerate(peer.second() for peer in peers)), {})
        where = [watch.view.standing(1, way) for way in Direction]
        watch.condition("rail1").step(Seen(S.UP, "", *where), 100 + second)
    document = said(whole)
    assert document["condition"] == "congested"
    assert document["delay"]["queue_tx_p50_us"] == pytest.approx(500, rel=0.3)
    (row,) = [row for row in document["evidence"] if row["detector"] == "delay"]
    assert row["against"]
    assert "queues tx" in row["says"]
    assert "half of the base round trip 20." in row["says"]
    put_table(show_links.links(report.links(whole.host), wide=True), wide=True)
    printed = capsys.readouterr().out
    assert "congested" in printed
    assert "queue tx/rx" in printed


async def test_no_such_link(whole):
    with pytest.raises(KeyError, match="allowed: rail0, rail1, rail2"):
        said(whole, "eth9")


@pytest.mark.parametrize("state", list(TRANSITIONS))
async def test_every_state_has_a_rule_and_can_be_printed(whole, state, capsys):
    health = whole.link("rail1").health
    health.state, health.since_ns, health.reason = state, time.monotonic_ns(), "[red]why[/red]"
    document = said(whole)
    assert document["rule"]["text"]
    assert document["next"] or state in (S.UP, S.UNKNOWN)
    console = Console(width=160)
    show_explain.explain(console, document | {"history": []})
    printed = capsys.readouterr().out
    assert "[red]why[/red]" in printed, "what others wrote is no markup"
    assert document["rule"]["name"] in printed


async def test_what_is_in_force_can_be_printed(whole, capsys):
    whole.operate("drain", "rail1", seconds=None, reason="", by="uid 7")
    whole.operate("detector_off", "loss", seconds=60, reason="noise", by="uid 9")
    document = whole.host.operator.document()
    show_explain.detectors(Console(width=160), document)
    assert re.search(r"loss +OFF  by uid 9, [\d.]+ \w+ left: noise", capsys.readouterr().out)
    assert show.operator_lines(document) == [
        ("drained", "rail1: by uid 7, until taken back"), ("detectors off", "loss")
    ]  # fmt: skip


async def test_who_waits_for_the_limit_of_changes_is_told_so(whole):
    link = whole.link("rail1")
    damping = link.health.damping
    now = time.monotonic_ns()
    for ago_s in (400, 300, 5):
        damping.published(now - ago_s * 10**9)
    link.carrier, link.pending_downs = False, 1
    whole.host.evaluator.step()
    document = said(whole)
    told = document["damping"]
    assert (told["published"], told["max_transitions"], told["window_s"]) == (4, 3, 600)
    assert told["return_in_s"] == pytest.approx(595, abs=2)
    text = io.StringIO()
    show_explain.explain(Console(file=text, width=160), document | {"history": []})
    assert "4 changes published within 10.0 min, 3 are allowed: back in 9.9 min" in text.getvalue()


async def test_paths_that_lose_are_told_where_the_link_is_not_blamed(tmp_path):
    peer = '[[peers]]\nhost = "a"\naddresses = [{ rail = 1, address = "10.1.0.9" }]\n'
    whole = WholeHost(tmp_path, extra=peer, links=link_tables(2, addressed=True))

    def loss():
        return [e["says"] for e in said(whole)["evidence"] if e["detector"] == "loss"]

    assert loss() == ["none worth telling"]
    path = next(p for p in whole.host.engine.paths if p.netdev == "rail1")
    path.worse = "5 % of probes to a lost on this path"
    assert loss() == [
        "1 path loses, and that it is the link is not certain: 5 % of probes to a lost on this path"
    ]
    whole.close()


async def test_the_place_of_a_fault_is_told(whole):
    blame = Blame(Kind.LINK, "h/1", confidence=0.97)
    whole.host.detectors.localization.places.now = [blame]
    assert said(whole)["located"] == ["link h/1 (NIC, cable or port of the leaf), 97 %"]
    assert said(whole, "rail0")["located"] == [], "another link of this host"
    assert said(whole, "rail0")["located_beyond"] == []
    row = located(blame, "h", whole.host.engine)
    assert (row.link, row.rail) == ("rail1", 1)
    doubt = Blame(Kind.UNKNOWN, "", candidates=((Kind.HOST, "h", 0.5), (Kind.LINK, "h/2", 0.4)))
    assert located(doubt, "h", whole.host.engine).link == "rail2"
    others = Blame(Kind.LINK, "x/1", candidates=((Kind.LINK, "h/1", 0.1),))
    assert located(others, "h", whole.host.engine).link == ""
