"""Every kind of fault, and exactly the alerts that it is worth: under it, after it, an hour later.

What is real, what is prolonged and what is played: `lab.observe.replay`. Each row of `ROWS` is
recorded on one lab of 4 hosts × 3 rails, one after the other, from a fabric that is well to one
that is again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise

import pytest
from test_daemon_faults import ctl

from lab.cli import Kind
from lab.cluster import wait_until
from lab.faults.catalog import (
    AddressRemoved,
    AdminDown,
    BlackHole,
    Carrier,
    Flap,
    LeafDown,
    Loss,
    NodeFreeze,
    NodeKill,
    ResetStorm,
    SpineDown,
)
from lab.observe.prometheus import Prometheus
from lab.observe.replay import TAIL_S, Phase, Track, document, firing, tracks

pytestmark = pytest.mark.alone  # what goes on for an hour must not be another test's load

HOSTS, RAILS = 4, 3
PORT = 19200
UNDER_S, AFTER_S, LATER_S = 1200, 600, 3900
"""Of rule time: the fault lasts for 20 minutes; looked at as it ends, 10 minutes later (rates have
windows of 5) and 65 minutes later."""
SETTLE_S = 150.0
SCRAPE_S = 2.0
"""A scrape has ended by then."""
UNWELL = (
    f"fabricd_link_state != 1 or up == 0 or fabricd_peer_silent == 1 or fabricd_prober_up == 0"
    f' or fabricd_located{{part!="link"}} or absent(count(fabricd_link_state) == {HOSTS * RAILS})'
    " or rate(fabricd_prober_refused_packets_total[4s]) > 0"
)
NOTHING: frozenset[str] = frozenset()


def link(alert, host, rail):
    return f"{alert} instance={host} link=rail{rail}"


def state(host, rail, number):
    return f'fabricd_link_state{{instance="{host}",link="rail{rail}"}} == {number}'


@dataclass(frozen=True)
class Row:
    """One fault and what it is worth.

    Attributes:
        begin: makes the context manager that has the fault in force, from the lab.
        noticed: PromQL that has a result once the fault shows.
        under, after, later: what fires.
        quick: not of the nightly tests alone.
    """

    begin: object
    noticed: str
    under: frozenset = NOTHING
    after: frozenset = NOTHING
    later: frozenset = NOTHING
    quick: bool = False
    loses: bool = False
    """Packets are lost while link and path are up."""
    unheard: tuple = ()
    """Labels of round trips that are not there under the fault."""
    blamed: frozenset | None = None
    """What `explain LINK` of any host may name as on its link; None: not asked."""


def faults(*made):
    """From the lab: a context in which all of them are in force."""

    @contextlib.contextmanager
    def force(lab):
        with contextlib.ExitStack() as stack:
            for make in made:
                stack.enter_context(lab.inject(make()))
            yield

    return force


@contextlib.contextmanager
def stopped(service, node):
    """SIGSTOP to a service of a host."""
    getattr(node, f"kill_{service}")(signal.SIGSTOP)
    try:
        yield
    finally:
        getattr(node, f"kill_{service}")(signal.SIGCONT)


def command(node, *args):
    done = ctl(node, *args)
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def drained(lab):
    """A plan takes one rail of a host."""
    command(lab.nodes[2], "drain", "rail1", "--for", "2h", "--reason", "optics")
    yield
    command(lab.nodes[2], "undrain", "rail1")


@contextlib.contextmanager
def maintained(lab):
    """Somebody works on all links of a host, pulls two cables, and stops the daemon at last."""
    node = lab.nodes[1]
    command(node, "maintenance", "host", "--for", "2h", "--reason", "recabling")
    time.sleep(3)  # It is scraped so.
    with lab.inject(Carrier("h1:rail0")), lab.inject(Carrier("h1:rail2")):
        yield
    command(node, "maintenance", "host", "--end")


@contextlib.contextmanager
def observing(lab):
    """A host that only observes loses all its rails."""
    node = lab.nodes[3]
    node.stop_file.touch()
    wait_until(
        lambda: 'fabricd_mode{mode="observe"} 1' in node.fetch(f"http://127.0.0.1:{PORT}/metrics"),
        SETTLE_S,
        "h3 observes",
    )
    with contextlib.ExitStack() as stack:
        for rail in range(RAILS):
            stack.enter_context(lab.inject(Carrier(f"h3:rail{rail}")))
        yield
    node.stop_file.unlink()


@contextlib.contextmanager
def forgotten(lab):
    """A reload of h0 removes h2 from its peers; h2 goes on probing it."""
    node = lab.nodes[0]
    whole = node.config_path.read_text()
    head, *peers = whole.split("[[peers]]")
    kept = [p for p in peers if 'host = "h2"' not in p]
    node.config_path.write_text("[[peers]]".join([head, *kept]))
    node.daemon.kill(signal.SIGHUP)
    yield
    node.config_path.write_text(whole)
    node.daemon.kill(signal.SIGHUP)


ROWS = {
    "carrier": Row(
        faults(lambda: Carrier("h0:rail1")),
        state("h0", 1, 3),
        frozenset({link("FabricLinkDown", "h0", 1)}),
        unheard=({"__name__": "fabricd_link_probe_rtt_seconds", "instance": "h0", "rail": "1"},),
    ),
    "admin": Row(faults(lambda: AdminDown("h1:rail0")), state("h1", 0, 7)),
    "flap": Row(
        faults(lambda: Flap("h2:rail2", 200, 12)),
        state("h2", 2, 4),
        frozenset({link("FabricLinkHeld", "h2", 2), link("FabricLinkFlapping", "h2", 2)}),
        frozenset({link("FabricLinkFlapping", "h2", 2)}),
    ),
    "blackhole": Row(
        faults(lambda: BlackHole("h0:rail0")),
        state("h0", 0, 3),
        frozenset({link("FabricLinkDown", "h0", 0)}),
    ),
    "blackhole rx": Row(
        faults(lambda: BlackHole("h1:rail1", "rx")),
        state("h1", 1, 3),
        frozenset({link("FabricLinkDown", "h1", 1)}),
    ),
    "blackhole tx": Row(
        faults(lambda: BlackHole("h2:rail0", "tx")),
        state("h2", 0, 3),
        frozenset({link("FabricLinkDown", "h2", 0)}),
    ),
    "loss": Row(
        faults(lambda: Loss("h3:rail2", 3)),
        state("h3", 2, 6),
        frozenset({link("FabricLinkDegraded", "h3", 2)}),
        loses=True,
    ),
    "reset": Row(faults(lambda: ResetStorm("h0:rail2")), "vector(1)"),
    "address": Row(
        faults(lambda: AddressRemoved("h1:rail2")),
        state("h1", 2, 3),
        frozenset({link("FabricLinkDown", "h1", 2)}),
    ),
    "leaf": Row(
        faults(lambda: LeafDown("leaf1")),
        'count(fabricd_located{part="leaf"}) == 4',
        frozenset({link("FabricLinkDown", f"h{i}", 1) for i in range(HOSTS)})
        | {"FabricFaultLocated part=leaf element=rail1"},
    ),
    "spine": Row(
        faults(lambda: SpineDown("spine0")),
        "vector(1)",
    ),
    "kill": Row(
        faults(lambda: NodeKill("h3")),
        'sum(fabricd_peer_silent{peer="h3"}) == 3',
        frozenset({"FabricDaemonDown instance=h3", "FabricPeerSilent peer=h3"}),
    ),
    "freeze": Row(
        faults(lambda: NodeFreeze("h2")),
        'sum(fabricd_peer_silent{peer="h2"}) == 3',
        frozenset({"FabricDaemonDown instance=h2", "FabricPeerSilent peer=h2"}),
        quick=True,
    ),
    "two of three rails": Row(
        faults(lambda: Carrier("h1:rail0"), lambda: Carrier("h1:rail1")),
        f"{state('h1', 0, 3)} and on (instance) {state('h1', 1, 3)}",
        frozenset({link("FabricLinkDown", "h1", 0), link("FabricLinkDown", "h1", 1)})
        | {"FabricRailsLow instance=h1"},
    ),
    # h0 and h2 told of two faults on one leaf: `explain` of h2 named h0's cable for h2's loss, and
    # an alert "the network" on the word of one host.
    "dead and lossy on one leaf": Row(
        faults(lambda: Carrier("h0:rail1"), lambda: Loss("h2:rail1", 2)),
        f"{state('h0', 1, 3)} and on () {state('h2', 1, 6)}",
        frozenset({link("FabricLinkDown", "h0", 1), link("FabricLinkDegraded", "h2", 1)}),
        loses=True,
        blamed=frozenset({"h0 rail1 link h0/1", "h2 rail1 link h2/1"}),
    ),
    "two dead on one leaf": Row(
        faults(lambda: Carrier("h0:rail1"), lambda: BlackHole("h2:rail1")),
        f"{state('h0', 1, 3)} and on () {state('h2', 1, 3)}",
        frozenset({link("FabricLinkDown", "h0", 1), link("FabricLinkDown", "h2", 1)}),
        blamed=frozenset({"h0 rail1 link h0/1", "h2 rail1 link h2/1"}),
    ),
    "drain": Row(drained, state("h2", 1, 7)),
    "maintenance": Row(maintained, state("h1", 2, 3)),
    "observe": Row(
        observing,
        f"{state('h3', 0, 3)} and on (instance) {state('h3', 2, 3)}",
        frozenset({link("FabricLinkDown", "h3", rail) for rail in range(RAILS)})
        | {"FabricRailsLow instance=h3", "FabricPeerSilent peer=h3"},
    ),
    "daemon stopped": Row(
        lambda lab: stopped("daemon", lab.nodes[0]),
        'up{instance="h0"} == 0',
        frozenset({"FabricDaemonDown instance=h0"}),
    ),
    "prober stopped": Row(
        lambda lab: stopped("prober", lab.nodes[1]),
        'fabricd_prober_up{instance="h1"} == 0',
        frozenset({"FabricProberDown instance=h1", "FabricPeerSilent peer=h1"}),
    ),
    "peer removed here": Row(
        forgotten,
        'absent(fabricd_peer_silent{instance="h0",peer="h2"})',
        # With one peer less h0 chooses other pairs across rails, which h1 does not probe.
        frozenset({"FabricPeerUnknown instance=h0", "FabricPeerUnknown instance=h1"}),
    ),
}


def lost(recorded):
    """Labels → by how much a counter of lost probes grew; a restart begins it anew."""
    return {
        track.labels: sum(max(0.0, b - a) for a, b in pairwise(track.values))
        for track in recorded
        if dict(track.labels)["__name__"] == "fabricd_link_probe_packets_lost_total"
    }


def fallen(recorded):
    """Counters that fell though the daemon was the same all the time."""
    starts = {
        dict(track.labels)["instance"]: len(set(track.values))
        for track in recorded
        if dict(track.labels)["__name__"] == "fabricd_start_time_seconds"
    }
    return [
        track.labels
        for track in recorded
        if dict(track.labels)["__name__"].endswith(("_total", "_bucket", "_count"))
        and starts[dict(track.labels)["instance"]] == 1
        and any(b < a for a, b in pairwise(track.values))
    ]


class Replay:
    """The lab, its Prometheus, and the moments of each row."""

    def __init__(self, lab, prometheus, where):
        self.lab, self.prometheus, self.where = lab, prometheus, where
        self.explained = frozenset()

    def wait(self, expression, empty=False):
        """Until the expression has a result, or with ``empty`` none."""
        deadline = time.monotonic() + SETTLE_S
        while bool(found := self.prometheus.query(expression)) == empty:
            assert time.monotonic() < deadline, (expression, found)
            time.sleep(0.25)

    def well(self):
        """All is well, and has been for as long as a tail lasts."""
        self.wait(UNWELL, empty=True)
        time.sleep(TAIL_S + 1)

    def record(self, row):
        """Through a row, from well to well: its phases and all series."""
        begin = time.time() - TAIL_S
        with row.begin(self.lab):
            start = time.time()
            self.wait(row.noticed)
            time.sleep(TAIL_S + SCRAPE_S)
            self.explained = self.explain() if row.blamed is not None else frozenset()
            # A scrape that is answered after the repair has the time at which it was asked for.
            repair = time.time() - SCRAPE_S
        self.well()
        end = time.time()
        found = self.prometheus.query(
            f'{{job="fabricd",__name__=~"up|fabricd_.+"}}[{round(end - begin) + 10}s]', end
        )
        assert len(found) > 100
        phases = [
            Phase(begin, start, 0),
            Phase(start, repair, UNDER_S),
            Phase(repair, end, AFTER_S + LATER_S),
        ]
        return phases, tracks(found)

    def explain(self):
        """What each host names as a fault on each link; what it does not know is left out."""
        said = set()
        for node in self.lab.nodes:
            for rail in range(RAILS):
                document = json.loads(ctl(node, "explain", f"rail{rail}", "--json").stdout)
                said |= {f"{node.name} rail{rail} {text}" for text in document["located"]}
        return frozenset(text.partition(" (")[0].partition(",")[0] for text in said
                         if "unknown" not in text)  # fmt: skip

    def alerts(self, phases, recorded):
        """What fires at each moment; how long the recording took is rule time, too."""
        steps = [round(phase.end_s - phase.begin_s) // 5 * 5 for phase in phases]
        repaired = steps[0] + steps[1] + UNDER_S
        moments = {
            "under": repaired - 5,
            "after": repaired + AFTER_S,
            "later": repaired + LATER_S,
        }
        found = firing(document(recorded, phases, moments), self.where, moments)
        return {when: {" ".join(alert) for alert in which} for when, which in found.items()}


@pytest.fixture(scope="module")
def replay(module_cluster, tmp_path_factory):
    lab = module_cluster(hosts=HOSTS, rails=RAILS)
    where = tmp_path_factory.mktemp("prometheus")
    lab.start_daemons(
        hold={"hold_down_s": 0.5, "probation_s": 1.0}, metrics={"listen": f"127.0.0.1:{PORT}"}
    )
    with Prometheus(lab.nodes, where, port=PORT) as prometheus:
        made = Replay(lab, prometheus, where)
        made.well()
        yield made


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if row.quick else pytest.mark.nightly) for n, row in ROWS.items()],
)
def test_exactly_the_alerts_that_a_fault_is_worth(replay, name):
    row = ROWS[name]
    phases, recorded = replay.record(row)
    assert replay.alerts(phases, recorded) == {
        "under": row.under, "after": row.after, "later": row.later
    }  # fmt: skip
    assert fallen(recorded) == []
    if row.blamed is not None:
        directions = {text.removesuffix(" rx").removesuffix(" tx") for text in replay.explained}
        assert directions, "somebody knows"
        assert directions <= row.blamed
    if row.loses:
        assert max(lost(recorded).values()) > 5
    else:
        # A link that goes down drops what is under way before anybody can know: a handful.
        assert {labels: n for labels, n in lost(recorded).items() if n > 30} == {}
    for gone in row.unheard:
        (rtt,) = [t for t in recorded if dict(t.labels).items() >= gone.items()]
        assert rtt.at(phases[1].end_s) is None, "no round trip while nothing is heard"
        assert rtt.at(phases[2].end_s) is not None


def test_losses_and_falls_would_be_seen():
    labels = (("__name__", "fabricd_link_probe_packets_lost_total"), ("instance", "h0"))
    start = (("__name__", "fabricd_start_time_seconds"), ("instance", "h0"))
    whole = [Track(labels, [1, 2, 3], [5, 5, 47]), Track(start, [1, 2, 3], [7, 7, 7])]
    assert lost(whole) == {labels: 42}
    assert fallen(whole) == []
    fell = Track(labels, [1, 2, 3], [5, 4, 47])
    assert fallen([fell, whole[1]]) == [labels]
    assert fallen([fell, Track(start, [1, 3], [7, 9])]) == [], "another daemon"


def test_each_kind_of_fault_of_the_lab_is_replayed():
    shown = subprocess.run(
        [sys.executable, "-m", "lab", "fault", "--help"],
        capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "200"},
    ).stdout  # fmt: skip
    assert {kind.value for kind in Kind} <= set(ROWS)
    assert all(kind.value in shown for kind in Kind)
