"""Hosts without [[peers]] find each other over the broker, and tell it who is silent."""

import json
import os
import sys
from pathlib import Path

import pytest
from test_daemon_faults import ask, ready

from fabricd.cli import client
from fabricd.escalate.peers import PEERS_FILE, load, load_proven
from lab.cluster import Cluster, wait_until
from lab.faults.catalog import NodeKill
from lab.lifecycle import procs
from lab.node import REPO
from lab.services.management import BROKER_PORT, Management
from lab.topology import Topology
from telemetry.messages.documents import HostDocument
from telemetry.messages.envelope import Message, Sender, encode
from telemetry.messages.topics import Kind
from telemetry.messages.topics import Topic as Place

SLOW_S = 120.0


@pytest.fixture
def lab(lab_root, lab_name):
    with Cluster(topology=Topology(name=lab_name, hosts=3, rails=2, management=True)) as cluster:
        management = Management(cluster)
        management.start_broker()
        cluster.start_daemons(peers=[], broker=management.broker_table)
        watch = Watch(management)
        yield cluster, management, watch
        watch.process.kill()
        watch.process.wait()


class Watch:
    """What hosts say at the broker, with the time at which it came."""

    def __init__(self, management):
        self.file = management.dir / "watch.jsonl"
        with self.file.open("wb") as out:
            self.process = procs.popen(
                management.ns,
                [sys.executable, str(Path(__file__).with_name("broker_watch.py")),
                 management.address, str(BROKER_PORT)],
                pid_dir=management.cluster.dir.pids,
                env={**os.environ, "PYTHONPATH": str(REPO)}, stdout=out, stderr=out,
            )  # fmt: skip

    def rows(self, topic):
        lines = self.file.read_text().splitlines()
        rows = [json.loads(line) for line in lines if line.startswith("[")]
        return [(at, data) for at, name, data in rows if name == f"fabric/v1/{topic}"]

    def first(self, topic, wanted):
        return next((at for at, data in self.rows(topic) if data and wanted(data)), None)


def stored(node):
    """Peers in the file that a killed fabricd leaves to the next one."""
    return {peer.host for peer in load(node.state_dir / PEERS_FILE)}


def peers(node):
    return {path["peer"] for link in ask(node, "links") for path in link["paths"]}


def test_hosts_find_each_other_and_a_lost_one_stays_a_peer(lab):
    cluster, management, watch = lab
    h0, h1, _ = cluster.nodes
    for node in cluster.nodes:
        wait_until(lambda n=node: ready(n) and len(peers(n)) == 2, SLOW_S, "all hear each other")
    wait_until(
        lambda: watch.first("host/h0/observations", lambda d: d["heard"] == ["h1", "h2"]),
        SLOW_S, "h0 says whom it hears",
    )  # fmt: skip
    # The gap of a prober that has just begun is over.
    wait_until(
        lambda: not watch.rows("host/h0/observations")[-1][1]["abstains"], SLOW_S, "h0 may vote"
    )

    def silent(data):
        return data["silent"] == [{"host": "h2", "rails": 2, "rails_probed": 2}]

    with cluster.inject(NodeKill("h2")):
        for node in (h0, h1):
            wait_until(
                lambda n=node: watch.first(f"host/{n.name}/observations", silent),
                SLOW_S, "both say that h2 is silent",
            )  # fmt: skip
        wait_until(
            lambda: watch.first("host/h2/status", lambda d: not d["online"]),
            SLOW_S,
            "the last will",
        )
        status = watch.rows("host/h2/status")[-1][1]
        assert status == {"online": False, "intended": False}
        wait_until(lambda: ask(h0, "timeline", kind="peer"), SLOW_S, "the timeline has it")
        known = next(r["mono_ns"] for r in ask(h0, "timeline", kind="peer") if r["data"]["silent"])
        came = watch.first("host/h0/observations", silent)
        print(f"the broker's reader has it {(came - known) / 1e6:.1f} ms after its timeline row")
        assert came - known < 1e9, "a bound for a loaded machine"
        assert peers(h0) == {"h1", "h2"}, "a lost host is still probed"
        wait_until(lambda: stored(h0) == {"h1", "h2"}, SLOW_S, "h0's peers are on its disk")
        management.broker.kill()
        pid = h0.kill_daemon()
        h0.daemon.wait_restarted(pid, SLOW_S)
        wait_until(lambda: ready_again(h0), SLOW_S, "h0 probes the same without a broker")
    for node in cluster.nodes:
        wait_until(lambda n=node: ready(n), SLOW_S, "h2 is back")


def ready_again(node):
    try:
        return peers(node) == {"h1", "h2"}
    except client.DaemonError:
        return False


def lie(management, name, *addresses):
    """Publish the document of a host that is nowhere, with addresses of others."""
    links = [
        {"netdev": f"rail{rail}", "rail": rail, "addresses": [address]}
        for rail, address in enumerate(addresses)
    ]
    document = HostDocument(name=name, links=links, probe_port=9200).model_dump(mode="json")
    message = Message(Place(Kind.HOST_DOCUMENT, name), Sender("b", "i"), 1, document)
    publish = (
        "import sys; from paho.mqtt.publish import single; "
        "single(sys.argv[3], sys.argv[4], 1, True, sys.argv[1], int(sys.argv[2]))"
    )
    process = procs.popen(
        management.ns,
        [sys.executable, "-c", publish, management.address, str(BROKER_PORT),
         message.topic.text(), encode(message).decode()],
        pid_dir=management.cluster.dir.pids,
    )  # fmt: skip
    assert process.wait(SLOW_S) == 0


@pytest.mark.nightly
def test_a_document_takes_no_address_of_another_host(lab):
    """Attack S4: whoever names an address first, the host that answers there has it."""
    cluster, management, _ = lab
    h0 = cluster.nodes[0]
    for node in cluster.nodes:
        wait_until(lambda n=node: ready(n) and len(peers(n)) == 2, SLOW_S, "all hear each other")
    found = [path for link in ask(h0, "links") for path in link["paths"] if path["peer"] == "h1"]
    of_h1 = [address for _, address in sorted({(p["peer_rail"], p["address"]) for p in found})]
    wait_until(lambda: set(load_proven(h0.state_dir / PEERS_FILE).values()) == {"h1", "h2"},
               SLOW_S, "answers are known")  # fmt: skip
    lie(management, "a0", *of_h1)

    def rows():
        return [row for row in ask(h0, "timeline", kind="address") if row["data"]["host"] == "a0"]

    wait_until(rows, SLOW_S, "the timeline names both")
    assert (rows()[0]["data"]["other"], rows()[0]["data"]["answered"]) == ("h1", "h1")
    assert peers(h0) == {"h1", "h2"}, "nothing is probed as a0's"
    text = f'fabricd_peer_address_conflicts{{other="h1",peer="a0"}} {len(of_h1)}.0'
    wait_until(lambda: text in h0.fetch("http://127.0.0.1:19200/metrics"), SLOW_S, "the metric")
    # One that knows nothing, and hears of a0 and h1 at once: a0 comes first by name.
    pid = h0.kill_daemon()
    (h0.state_dir / PEERS_FILE).unlink()
    h0.daemon.wait_restarted(pid, SLOW_S)

    def hears_h1():
        try:
            paths = [path for link in ask(h0, "links") for path in link["paths"]]
        except client.DaemonError:
            return False
        heard = {path["address"] for path in paths if path["peer"] == "h1" and path["heard"]}
        return heard == set(of_h1)

    wait_until(hears_h1, SLOW_S, "h1 has answered at its addresses")
    wait_until(lambda: rows() and rows()[0]["data"]["answered"] == "h1", SLOW_S, "it is told")
