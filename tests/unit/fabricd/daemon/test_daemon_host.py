"""The shell around the engine: what the prober is told, and when."""

import asyncio
import json
import socket
import time

import pytest
from whole_host import WholeHost, link_tables, peer_tables, text

from fabricd.config.loader import parse
from fabricd.detect.loss_rules import LossCounters
from fabricd.links.inventory import Inventory
from fabricd.probes.feed import ProberFeed
from fabricd.probes.records import CarrierRecord, Direction, HeardRecord, MissRecord
from fabricd.timeline.restart_state import take_over
from fabricd.timeline.rows import event
from telemetry.events import EventKind
from telemetry.events import LinkState as S

RAILS, PEERS = link_tables(2), peer_tables(rails=2)


def netdev(inventory, index, name, address=None):
    inventory.take(
        {
            "event": "RTM_NEWLINK", "index": index, "flags": 1,
            "attrs": [("IFLA_IFNAME", name), ("IFLA_CARRIER", 1)],
        }
    )  # fmt: skip
    if address:
        inventory.take(
            {
                "event": "RTM_NEWADDR", "index": index, "scope": 0,
                "attrs": [("IFA_LOCAL", address)],
            }
        )  # fmt: skip


@pytest.fixture
def make(tmp_path):
    made = []

    def host(inventory, links=RAILS):
        made.append(WholeHost(tmp_path, PEERS, links, inventory=inventory, untouched=True))
        return made[-1].host

    yield host
    for each in made:
        each.close()


def told(host):
    config = host.prober.feed._config
    return [link.address for link in config.links], len(config.paths)


async def test_prober_is_not_told_addresses_that_were_never_asked_for(make):
    inventory = Inventory()
    host = make(inventory)
    assert not host.prober.feed.configured, "a prober with no source address refuses its peers"
    netdev(inventory, 5, "rail0", "10.0.0.1")
    netdev(inventory, 6, "rail1", "10.1.0.1")
    inventory.loaded = True
    host.probe_loop.devices_changed({"rail0", "rail1"})
    addresses, paths = told(host)
    assert addresses == ["10.0.0.1", "10.1.0.1"]
    assert paths == len(host.engine.paths) >= 4


async def test_a_loaded_inventory_serves_from_the_first_moment(make):
    inventory = Inventory(loaded=True)
    netdev(inventory, 5, "rail0", "10.0.0.1")
    host = make(inventory)
    assert told(host)[0] == ["10.0.0.1", "0.0.0.0"], "no device: carrier only"
    before = host.prober.feed._config
    host.probe_loop.devices_changed({"rail0"})
    assert host.prober.feed._config is before, "nothing changed"
    netdev(inventory, 6, "rail1", "10.1.0.1")
    host.probe_loop.devices_changed({"rail1"})
    assert told(host)[0] == ["10.0.0.1", "10.1.0.1"]


async def test_configured_addresses_need_no_inventory(make):
    links = RAILS.replace("rail = 0", 'rail = 0\naddress = "10.0.0.9"')
    assert not make(Inventory(), links).prober.feed.configured, "one is missing"
    links = links.replace("rail = 1", 'rail = 1\naddress = "10.1.0.9"')
    assert told(make(Inventory(), links))[0] == ["10.0.0.9", "10.1.0.9"]


async def test_an_inventory_that_stays_empty_is_no_reason_to_wait(make):
    host = make(Inventory(loaded=True))
    assert told(host) == (["0.0.0.0"] * 2, 0)


async def test_paths_over_found_addresses_are_restored(make):
    inventory = Inventory(loaded=True)
    netdev(inventory, 5, "rail0", "10.0.0.1")
    netdev(inventory, 6, "rail1", "10.1.0.1")
    old = make(inventory)
    old.engine.adopt("rail0", "10.0.0.2", S.DOWN, 1)
    document = {"engine": old.engine.save(2), "mono_ns": 2}
    new = make(inventory)
    assert take_over(new.lasting, document) == []
    assert [p.spec.address for p in new.engine.paths if p.health.state is S.DOWN] == ["10.0.0.2"]


def flapped(make, tmp_path):
    """The document of a host whose rail0 was damped."""
    old = make(Inventory(loaded=True))
    for link in old.engine.links:
        link.carrier = True
    old.evaluator.step()
    link = old.engine.links[0]
    link.carrier, link.pending_downs = False, 4
    old.evaluator.step()
    old.events.recorder._queue.clear()
    old.saver.mark_changed()
    old.saver.save()
    return json.loads(json.dumps(old.events.recorder._queue[-1][1]))


async def test_states_penalties_and_counts_survive_a_reboot_aged_by_the_wall_clock(make, tmp_path):
    document = flapped(make, tmp_path)
    (tmp_path / "steer").unlink()  # /run is new after a reboot
    document |= {
        "boot_id": "before",
        "mono_ns": 10**18,
        "wall_ns": document["wall_ns"] - 15 * 10**9,
    }
    assert document["usual_losses"] == {}, "no packet yet"
    usual = {"rail0": {"rx": [5, 1_000_000], "tx": [0, 900_000]}}
    new = make(Inventory(loaded=True))
    assert take_over(new.lasting, document | {"usual_losses": usual}) == []
    assert new.detectors.losses.save() == usual
    health = new.engine.links[0].health
    now = time.monotonic_ns()
    assert health.state is S.HOLD
    assert health.damping.is_suppressed(now)
    assert 1500 < health.damping.penalty(now) < 2100, "4000, one half-life ago"
    assert health.damping.hourly(now) == 4
    new.engine.links[0].carrier = True
    new.evaluator.step()
    assert health.state is S.HOLD, "it has to earn its way back"
    assert new.jobs.totals.to_state() == make(Inventory(loaded=True)).jobs.totals.to_state()


@pytest.mark.parametrize("wall", [2**62, "x", None])
async def test_a_clock_that_went_back_or_no_clock_at_all(make, tmp_path, wall):
    document = flapped(make, tmp_path) | {"boot_id": "before", "wall_ns": wall}
    (tmp_path / "steer").unlink()
    new = make(Inventory(loaded=True))
    take_over(new.lasting, document)
    if isinstance(wall, int):
        assert new.engine.links[0].health.damping.penalty(time.monotonic_ns()) > 3000
    else:
        assert new.engine.links[0].health.state is S.UNKNOWN


async def test_state_that_finds_no_room_is_put_again(make):
    host = make(Inventory(loaded=True))
    host.events.recorder._max = 2
    host.events.recorder.put([event(EventKind.DAEMON)] * 2)
    host.saver.save()
    assert len(host.events.recorder._queue) == 2, "no room for it"
    assert not host.saver.settled
    host.events.recorder._queue.clear()
    assert not host.saver.settled, "what changed is not stored"
    host.saver.save()
    assert [item[0] for item in host.events.recorder._queue] == ["carrier", "daemon"]
    assert not host.saver.settled, "it waits"
    host.events.recorder._queue.clear()
    assert host.saver.settled
    host.saver.mark_changed()
    assert not host.saver.settled


async def test_feed_leaves_the_prober_alone_until_it_is_configured(tmp_path, make):
    (tmp_path / "prober").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(tmp_path / "prober" / "ctl.sock"))
        server.listen()
        server.settimeout(0.5)
        feed = ProberFeed(tmp_path)
        task = asyncio.create_task(feed.run(lambda: None, lambda *_: None))
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(server.accept)
        feed.configure(make(Inventory(loaded=True)).prober.feed._config)
        server.settimeout(30)
        connection, _ = await asyncio.to_thread(server.accept)
        with connection:
            request = await asyncio.to_thread(connection.recv, 65536)
            assert b'"configure"' in request
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_losses_are_placed_by_the_same_map_as_silence(tmp_path, monkeypatch):
    leaves = '[[topology.leaves]]\nname = "tor-7"\nports = ["h/0", "h/1", "h/2"]\n'
    whole = WholeHost(tmp_path, extra=leaves)
    monkeypatch.setattr(whole.host.prober.feed, "paths", list)
    whole.host.probe_tick.feed_loss()
    assert whole.host.detectors.losses.topology.leaf(("h", 2)) == "tor-7"
    whole.close()


@pytest.fixture
async def losing(tmp_path, monkeypatch):
    """A host of which rail1 loses a tenth of all it should hear, until that is known."""
    links = link_tables(2, addressed=True)
    whole = WholeHost(tmp_path, extra=PEERS, links=links)
    host, sent = whole.host, [0]
    for r in (0, 1):
        netdev(host.inventory, 5 + r, f"rail{r}", f"10.{r}.0.1")
    began = time.monotonic_ns()
    monkeypatch.setattr(host.prober.tables, "rows", lambda *, recent=False: [])
    monkeypatch.setattr(time, "monotonic_ns", lambda: began + sent[0] * 10**6)

    def counters(*_):
        for p in host.engine.paths:
            lost = sent[0] // 10 if p.spec.link == 1 else 0
            yield LossCounters(
                p.index, p.spec.link, p.spec.link, p.spec.peer, p.spec.peer_rail, sent[0],
                sent[0] - lost, lost, 0,
            )  # fmt: skip

    def feed():
        sent[0] += 500
        host.probe_tick.feed_loss()
        return whole.states()

    monkeypatch.setattr("fabricd.detect.evidence.loss_counters", counters)
    while feed()["rail1"] != "DEGRADED":
        assert sent[0] < 60_000
    whole.feed, whole.counters = feed, sent
    yield whole
    whole.close()


async def test_a_reload_forgets_no_loss(losing, monkeypatch):
    host = losing.host
    losing.told.clear()
    host.reconfigure(host.config)
    with monkeypatch.context() as no_answer_yet:
        no_answer_yet.setattr(host.prober.tables, "rows", lambda *, recent=False: None)
        host.probe_tick.feed_loss()
    for _ in range(3):
        assert losing.feed() == {"rail0": "UP", "rail1": "DEGRADED"}
    assert losing.weights()["rail1"] == 500
    assert not [row for row in losing.told if row["kind"] in ("state", "steer")]


async def test_another_prober_s_counters_forget_no_loss(losing):
    losing.host.probe_loop.prober_changed("vanished", {})
    losing.host.probe_loop.prober_changed("restarted", {"pid": 7, "incarnation": 8})
    for _ in range(3):
        assert losing.feed() == {"rail0": "UP", "rail1": "DEGRADED"}


async def test_a_link_with_other_paths_begins_anew(losing, tmp_path):
    host = losing.host
    peers = PEERS.replace(".0.2", ".9.2").replace(".0.3", ".9.3")
    links = link_tables(2, addressed=True)
    host.reconfigure(parse(text(tmp_path, peers, links), "f"))
    assert losing.feed()["rail1"] == "UP"


def missed(link, number, path=0):
    return MissRecord(
        index=number, mono_ns=number, config=1, link=link, path=path, direction=Direction.RX,
        count=number, inconclusive=False, interval_ns=10**7, silent_ns=10**7, last_heard_ns=1,
    )  # fmt: skip


async def test_news_of_links_that_are_out_wait_for_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr("fabricd.runtime.probe_loop.LATE_S", 0.0)
    whole = WholeHost(tmp_path)
    host = whole.host
    out, fine = whole.link("rail0"), whole.link("rail1")
    out.carrier = False
    host.evaluator.step()
    assert (out.health.state, fine.health.state) == (S.DOWN, S.UP)
    host.evaluator.close()  # it would step in 20 ms, to save
    news = []
    monkeypatch.setattr(host.prober.feed, "events", lambda: [news.pop()] if news else [])

    before = host.evaluator.cycles
    for number in range(5):
        news.append(missed(out.index, number))
        host.probe_loop.woken()
    assert host.evaluator.cycles == before, "no look for a link that is out"
    await asyncio.sleep(0.001)
    assert host.evaluator.cycles == before + 1, "one for all five"

    news.append(missed(fine.index, 9))
    host.probe_loop.woken()
    assert host.evaluator.cycles == before + 2, "at once for one that carries"
    host.probe_loop.woken()
    assert host.evaluator.cycles == before + 3, "and when the prober itself is the news"
    whole.close()


async def test_what_is_heard_again_waits_and_so_do_misses_of_a_path_that_is_out(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("fabricd.runtime.probe_loop.LATE_S", 0.0)
    links = link_tables(2, addressed=True)
    whole = WholeHost(tmp_path, extra=PEERS, links=links)
    host = whole.host
    host.engine.adopt("rail0", "10.0.0.2", S.DOWN, 1)
    paths = host.engine.paths
    out = next(p for p in paths if p.health.state is S.DOWN)
    fine = next(p for p in paths if p.health.state is not S.DOWN and p.spec.link == out.spec.link)
    heard = HeardRecord(
        index=1, mono_ns=1, config=1, link=fine.spec.link, path=fine.index, direction=Direction.RX,
        count=3, first=False, silent_ns=1, peer_stalled=False,
    )  # fmt: skip
    news = []
    monkeypatch.setattr(host.prober.feed, "events", lambda: [news.pop()] if news else [])
    before = host.evaluator.cycles
    for record in (heard, missed(out.spec.link, 1, out.index)):
        news.append(record)
        host.probe_loop.woken()
    assert host.evaluator.cycles == before
    news.append(missed(fine.spec.link, 2, fine.index))
    host.probe_loop.woken()
    assert host.evaluator.cycles == before + 1

    for path in paths:
        if path.spec.link == out.spec.link:
            host.engine.adopt(path.netdev, path.spec.address, S.DOWN, 1)
    before = host.evaluator.cycles
    news.append(missed(out.spec.link, 3, out.index))
    host.probe_loop.woken()
    assert host.evaluator.cycles == before + 1, "no other path can tell that the link fails now"
    whole.close()


async def test_what_waits_is_recorded_before_what_comes_later(tmp_path, monkeypatch):
    whole = WholeHost(tmp_path)
    host = whole.host
    out = whole.link("rail0")
    out.carrier = False
    host.evaluator.step()
    flap = event(EventKind.FLAP, reason="carrier lost", data={})
    monkeypatch.setattr(host.carriers, "told", lambda _: [flap])
    monkeypatch.setattr(host.prober.feed, "events", lambda: [missed(out.index, 1)])
    whole.told.clear()
    host.probe_loop.woken()
    assert whole.told == []
    host.events.record(EventKind.DAEMON, "stopped")
    assert [row["kind"] for row in whole.told] == ["flap", "daemon"]
    whole.close()


def cut(link, number):
    """The prober saw it lose its carrier."""
    return CarrierRecord(
        index=number, mono_ns=number, config=1, link=link, downs=1, carrier=False, down_count=1,
        up_count=1, since_ns=number - 1, initial=False, gone=False, returned=False,
    )  # fmt: skip


def watched(tmp_path, monkeypatch):
    """A host, what it does in which order, and its news."""
    whole = WholeHost(tmp_path)
    host, did, news = whole.host, [], []
    step, table = host.evaluator.step, host.carriers.table
    monkeypatch.setattr(
        host.evaluator, "step", lambda *events: (did.append("step"), step(*events))[1]
    )
    monkeypatch.setattr(
        host.carriers, "table", lambda: (did.append("table"), whole.looked_up(table))[1]
    )
    whole.looked_up = lambda read: read()
    monkeypatch.setattr(host.prober.feed, "events", lambda: [news.pop()] if news else [])
    return whole, did, news


async def test_a_lost_carrier_is_on_the_page_before_the_table_is_read(tmp_path, monkeypatch):
    whole, did, news = watched(tmp_path, monkeypatch)
    news.append(cut(whole.link("rail0").index, 5))
    whole.host.probe_loop.woken()
    assert did == ["step", "table"]
    did.clear()
    whole.host.probe_loop.wake()
    assert did == ["table", "step"], "nothing that is worth a hurry"
    whole.close()


async def test_what_the_table_changes_without_an_event_is_looked_at(tmp_path, monkeypatch):
    whole, did, news = watched(tmp_path, monkeypatch)
    other = whole.link("rail2")

    def dark(_read):
        other.carrier = False
        return []

    whole.looked_up = dark
    news.append(missed(whole.link("rail0").index, 6))
    whole.host.probe_loop.woken()
    assert did == ["step", "table", "step"]
    assert other.health.state is S.DOWN
    whole.close()


async def test_no_verdict_before_it_is_known_who_has_carrier(tmp_path, monkeypatch):
    """As after a restart: a link without carrier would be called silent, by its misses."""
    whole, did, news = watched(tmp_path, monkeypatch)
    whole.link("rail1").carrier = None
    news.append(missed(whole.link("rail0").index, 7))
    whole.host.probe_loop.woken()
    assert did == ["table", "step"]
    whole.close()
