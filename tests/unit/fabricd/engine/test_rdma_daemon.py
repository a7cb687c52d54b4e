"""RDMA probes from configuration to what the operator reads: plan, feed, daemon, metrics."""

import json
import time
from types import SimpleNamespace

import pytest
from engine_host import config, specs
from hypothesis import given
from hypothesis import strategies as st
from whole_host import WholeHost, link_tables, peer_tables

from fabricd.config.loader import ConfigError, parse
from fabricd.links.ibports import Port
from fabricd.probes import layout as lay
from fabricd.probes import plan
from fabricd.probes.client import ProbeConfig, ProbeLink, ProbePath, ProbeRdma, rdma_paths
from fabricd.probes.decode import event
from fabricd.probes.feed import ProberFeed
from fabricd.probes.records import LinkRow, MissRecord, PathRow, RdmaPortRecord
from fabricd.probes.ring import RingError, RingReader
from fabricd.views.explain import explain
from fabricd.views.rdma import text as rdma_text
from fabricd.views.report import links, snapshot, status
from lab.inputs.ring_file import event_at, fresh_ring, put
from telemetry.events import LinkState as S

MLX = {"rail1": (Port("mlx5_1", 1), Port("mlx5_2", 1)), "rail3": (Port("mlx5_3", 2),)}
PEERS, ADDRESSED = peer_tables(rails=2), link_tables(2, addressed=True)


# The plan


def test_rdma_is_probed_where_there_is_a_port_an_address_and_a_path():
    addresses = ["10.0.0.1", "10.1.0.1", None, "10.3.0.1"]
    found = plan.rdma_ports(config(), addresses, specs(4), MLX)
    assert found == (ProbeRdma(1, "mlx5_1", 1), ProbeRdma(3, "mlx5_3", 2))
    assert plan.rdma_ports(config(), addresses, specs(1), MLX) == ()
    assert plan.rdma_ports(config(), [None] * 4, specs(4), MLX) == ()
    assert plan.rdma_ports(config(), addresses, specs(4), {}) == ()
    off = config(extra='[probe]\nrdma = "off"\n')
    assert plan.rdma_ports(off, addresses, specs(4), MLX) == ()


def test_rdma_that_finds_no_room_in_the_ring_is_not_probed():
    many = specs(4) * (lay.MAX_PATHS // 12)
    assert plan.rdma_ports(config(), ["10.0.0.1"] * 4, many, MLX) == ()
    assert plan.rdma_note(config(), ["10.0.0.1"] * 4, many, MLX) == (
        "with RDMA there are 6 links and 1530 paths to probe, and the prober has room for 64 and "
        "1024: [probe] peers_per_rail makes fewer"
    )
    few = specs(4), MLX
    assert plan.rdma_note(config(), ["10.0.0.1"] * 4, *few) == ""


async def test_a_link_says_why_its_rdma_is_not_probed(tmp_path, monkeypatch):
    made = WholeHost(tmp_path, PEERS, ADDRESSED)
    host, ports = made.host, {"rail1": (Port("mlx5_1", 1),)}
    links = host.engine.links
    assert rdma_text(host, links[1], 0) == "RDMA is not probed here"
    monkeypatch.setattr(lay, "MAX_PATHS", len(host.engine.paths))
    host.planner.ports_found(ports)
    assert "RDMA is not probed here: with RDMA there are 3 links" in rdma_text(host, links[1], 0)
    assert rdma_text(host, links[0], 0) == "RDMA is not probed here", "it has no port"
    made.close()


def test_the_configuration_says_off_or_auto():
    with pytest.raises(ConfigError, match="rdma"):
        parse('[host]\nname = "h"\n[[links]]\nnetdev = "a"\nrail = 0\n[probe]\nrdma = "on"\n', "f")


def test_what_the_prober_is_told():
    rdma = plan.rdma_ports(config(), ["10.0.0.1"] * 4, specs(4), MLX)
    told = plan.probe_config(config(), ["10.0.0.1"] * 4, specs(4), rdma)
    document = json.loads(json.dumps(told.document()))
    assert document["rdma"] == [
        {"link": 1, "device": "mlx5_1", "port": 1},
        {"link": 3, "device": "mlx5_3", "port": 2},
    ]
    assert told.rdma_paths() == [3, 4, 5, 9, 10, 11]


@given(st.lists(st.integers(0, 3), max_size=12), st.permutations(range(4)))
def test_each_path_of_a_probed_link_has_one_rdma_path(path_links, order):
    probed = order[:2]
    found = rdma_paths(probed, path_links)
    assert sorted(found) == [i for i, link in enumerate(path_links) if link in probed]
    assert [path_links[i] for i in found] == sorted(
        (path_links[i] for i in found), key=probed.index
    )


# The ring


def rdma_ring(*, links=1, paths=1, more_links=1, more_paths=1):
    data = fresh_ring(links=links, paths=paths)
    for index in range(links, links + more_links):
        put(
            data, lay.LINK_ROW, lay.LINK_OFFSET + index * lay.LINK_ROW.size,
            seq=2, netdev=b"rail0", port=4791, flags=lay.LINK_RDMA | lay.LINK_BOUND,
        )  # fmt: skip
    for index in range(paths, paths + more_paths):
        put(
            data, lay.PATH_ROW, lay.PATH_OFFSET + index * lay.PATH_ROW.size,
            seq=4, port=4791, link=links, flags=lay.PATH_RDMA | lay.PATH_PEER_RDMA,
        )  # fmt: skip
    put(data, lay.RING_HEADER, 0, rdma_link_count=more_links, rdma_path_count=more_paths)
    return data


def test_rows_of_rdma_follow_the_others_and_old_readers_see_none(tmp_path):
    (tmp_path / "ring").write_bytes(rdma_ring())
    with RingReader(tmp_path / "ring") as reader:
        header = reader.header()
        assert (header.link_count, header.rdma_link_count) == (1, 1)
        assert [(r.port, r.rdma) for r in reader.links()] == [(9200, False)]
        assert [(r.port, r.rdma, r.bound) for r in reader.links(rdma=True)][1] == (4791, True, True)
        assert [r.rdma for r in reader.paths()] == [False]
        over = reader.paths(rdma=True)[1]
        assert (over.index, over.link, over.rdma, over.peer_rdma) == (1, 1, True, True)


def test_more_rdma_than_there_is_room_for_is_refused(tmp_path):
    (tmp_path / "ring").write_bytes(rdma_ring(more_links=0))
    data = bytearray((tmp_path / "ring").read_bytes())
    put(data, lay.RING_HEADER, 0, rdma_link_count=64)
    (tmp_path / "ring").write_bytes(data)
    with pytest.raises(RingError, match="1\\+64 links"):
        RingReader(tmp_path / "ring")


def test_a_port_event_is_decoded():
    values = (1, 5, lay.KIND_RDMA_PORT, lay.FLAG_CARRIER, 2, lay.NONE, 0, 7, 0, 0, 0, 0)
    assert event(0, values) == RdmaPortRecord(0, 5, 7, 2, active=True)
    with pytest.raises(ValueError, match="link"):
        event(0, (1, 5, lay.KIND_RDMA_PORT, 0, 64, lay.NONE, 0, 7, 0, 0, 0, 0))


# The feed

TWO = ProbeConfig(
    1,
    [ProbeLink(0, "rail0", "10.0.0.1")],
    [ProbePath(0, 0, "10.0.0.2", 9200, 7)],
    rdma=[ProbeRdma(0, "mlx5_0", 1)],
)


def feed_of(tmp_path, data, *, config=TWO):
    put(data, lay.RING_HEADER, 0, heartbeat_ns=time.monotonic_ns())
    (tmp_path / "ring").write_bytes(data)
    made = ProberFeed(tmp_path)
    made.configure(config)
    made.reader = RingReader(tmp_path / "ring", from_start=True)
    made._epoch = 1
    return made


def test_the_feed_tells_both_transports_apart(tmp_path):
    data = rdma_ring()
    put(data, lay.RING_HEADER, 0, event_head=4)
    event_at(data, 0, kind=lay.KIND_MISS, link=0, path=0)
    event_at(data, 1, kind=lay.KIND_MISS, link=1, path=1)
    event_at(data, 2, kind=lay.KIND_RDMA_PORT, link=1, path=lay.NONE)
    event_at(data, 3, kind=lay.KIND_MISS, link=2, path=1)
    made = feed_of(tmp_path, data)
    rows, rdma = made.all_paths()
    assert ([r.rdma for r in rows], [r.rdma for r in rdma]) == ([False], [True])
    assert [row.port for row in made.rdma_links()] == [4791]
    assert [(type(r), r.link) for r in made.events()] == [(MissRecord, 0)]
    assert [(type(r), r.link) for r in made.take_rdma_events()] == [
        (MissRecord, 1), (RdmaPortRecord, 1),
    ]  # fmt: skip
    assert made.take_rdma_events() == []
    assert made.refused == 1, "of a link that is not configured"


def test_an_older_prober_has_no_rdma_rows(tmp_path):
    made = feed_of(tmp_path, fresh_ring())
    rows, rdma = made.all_paths()
    assert (len(rows), rdma, made.rdma_links()) == (1, [], [])


# The daemon


class Prober(ProberFeed):
    """Both tables, with what is silent, once it has the engine of the host."""

    def __init__(self, run_dir):
        super().__init__(run_dir)
        self.engine = None
        self.silent, self.events_now, self.open = set(), [], True

    def header(self):
        if self.engine is None:
            return None
        return SimpleNamespace(
            heartbeat_ns=time.monotonic_ns(), running=True, stall_ns=0, incarnation=1, stalls=0,
            refused={}, due_times_refused=0, start_ns=0, synchronized=False, clock_read_ns=0,
            pid=1,
        )  # fmt: skip

    def row(self, path, *, rdma):
        now = time.monotonic_ns()
        missed = 9 if (path.netdev, rdma) in self.silent else 0
        heard = now - missed * 10**7
        base = dict.fromkeys(PathRow._fields, 0)
        base |= {
            "index": path.index, "link": path.spec.link, "address": path.spec.address,
            "established": True, "interval_ns": 10**7, "peer_interval_ns": 10**7,
            "rx_missed": missed, "last_heard_ns": heard, "peer_incarnation": 1, "acked_ns": heard,
            "said_ns": heard, "due_ns": heard + 10**7, "awake_us": 10**6,
            "rtt_smoothed_ns": 40_000, "rdma": rdma, "peer_rdma": rdma, "gone": False,
            "clock": False, "by_due_time": False, "port_refused": False,
        }  # fmt: skip
        return PathRow(**base)

    def all_paths(self):
        engine = self.engine
        return engine and (
            [self.row(p, rdma=False) for p in engine.paths],
            [self.row(p, rdma=True) for p in engine.rdma.paths],
        )

    def rdma_links(self):
        base = dict.fromkeys(LinkRow._fields, 0)
        return [
            LinkRow(**base | {"index": x.index, "netdev": x.netdev, "bound": self.open})
            for x in self.engine.rdma.links
        ]

    def links(self):
        return []

    def events(self):
        return []

    def take_rdma_events(self):
        taken, self.events_now = self.events_now, []
        return taken


@pytest.fixture
async def whole(tmp_path):
    made = WholeHost(tmp_path, PEERS, ADDRESSED, feed=Prober)
    host = made.host
    host.nic_input.ports_found({"rail0": (Port("rxe0", 1),), "rail1": (Port("rxe1", 1),)})
    for link in host.engine.links:
        link.carrier = True
    host.prober.feed.engine = host.engine
    settle(host, lambda: rdma_states(host) == [S.UP, S.UP])
    yield made
    made.close()


def settle(host, done):
    """Evaluate until ``done``; what the detectors wait for are tens of milliseconds."""
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        host.prober.tables.forget()
        host.evaluator.step()


def rdma_states(host):
    return [x.health.state for x in host.engine.rdma.links]


async def test_broken_rdma_from_the_table_to_the_operator(whole):
    host = whole.host
    host.prober.feed.silent.add(("rail1", True))
    settle(host, lambda: rdma_states(host) == [S.UP, S.DOWN])
    assert whole.states() == {"rail0": "UP", "rail1": "UP"}
    shot = snapshot(host).links[1]
    assert (shot.weight, shot.rdma.weight, shot.rdma.broken, shot.rdma.ip_broken) == (
        1.0, 0.0, True, False,
    )  # fmt: skip
    assert shot.rdma.paths_silent == 3
    said = explain(host, "rail1", time.monotonic_ns())
    assert said["rdma"]["state"] == "down"
    assert "RDMA over rxe1/1 is broken, IP works: nothing heard from a, b" in said["rdma"]["text"]
    told = [x for x in said["evidence"] if x["detector"] == "probe-rdma"]
    assert [x["against"] for x in told] == [True] * 4
    assert "broken" in status(host)["rdma"]["rail1"]
    told = links(host)[1]
    assert told["rdma"]["weight"] == 0.0
    assert {path["rdma"] for path in told["paths"]} == {"up"}, "the link says it for all of them"
    kinds = [(row["kind"], row["link"], row.get("to")) for row in whole.told]
    assert ("rdma_state", "rail1", "down") in kinds
    assert not any(kind == "link_state" and to == "down" for kind, _, to in kinds)
    steer = [r for r in whole.told if r["kind"] == "steer"]
    assert [(r["link"], r["data"]["transport"]) for r in steer] == [("rail1", "rdma")]


async def test_broken_ip_leaves_rdma(whole):
    host = whole.host
    host.prober.feed.silent.add(("rail1", False))
    settle(host, lambda: whole.states()["rail1"] == "DOWN")
    shot = snapshot(host).links[1]
    assert (shot.weight, shot.rdma.weight, shot.rdma.broken, shot.rdma.ip_broken) == (
        0.0, 1.0, False, True,
    )  # fmt: skip
    text = explain(host, "rail1", time.monotonic_ns())["rdma"]["text"]
    assert text.startswith("RDMA over rxe1/1 works, IP is broken: nothing heard from a, b")


async def test_a_port_event_is_the_links_state_at_once(whole):
    host = whole.host
    index = host.engine.rdma.links[1].index
    host.prober.feed.events_now = [RdmaPortRecord(0, 0, 0, index, active=False)]
    host.probe_loop.woken()
    assert host.engine.links[1].port_active is False
    assert whole.states()["rail1"] == "DOWN"
    host.prober.feed.events_now = [RdmaPortRecord(0, 0, 0, index, active=True)]
    host.probe_loop.woken()
    assert host.engine.links[1].port_active is True


async def test_a_port_that_cannot_be_opened_is_said(whole):
    host = whole.host
    host.prober.feed.open = False
    text = explain(host, "rail0", time.monotonic_ns())["rdma"]["text"]
    assert "could not open the port" in text
    assert snapshot(host).links[0].rdma.port_open is False


async def test_a_host_without_ports_says_nothing_of_rdma(tmp_path):
    made = WholeHost(tmp_path, PEERS, ADDRESSED)
    try:
        assert snapshot(made.host).links[0].rdma is None
        assert status(made.host)["rdma"] == {}
        assert explain(made.host, "rail0", 1)["rdma"] is None
    finally:
        made.close()
