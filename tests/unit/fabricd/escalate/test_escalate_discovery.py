"""Hosts that are found over the broker: what a daemon does with their documents."""

import asyncio
import json
import time
from types import SimpleNamespace

import pytest
from whole_host import WholeHost

from fabricd.escalate.address_owners import TURN_NS
from fabricd.escalate.discovery import APPLY_NS, Discovery
from fabricd.escalate.peers import PEERS_FILE
from fabricd.escalate.refusals import Refusals
from fabricd.probes.wire_id import host_id
from telemetry.messages.documents import HostDocument
from telemetry.messages.envelope import Message, Sender
from telemetry.messages.topics import Kind, Topic

EXTRA = '[broker]\nhost = "127.0.0.1"\n'


@pytest.fixture
async def whole(tmp_path):
    made = WholeHost(tmp_path, EXTRA, f'state_dir = "{tmp_path}"\n[[links]]\nnetdev = "rail0"\n'
                     'rail = 0\naddress = "10.0.0.9"\n')  # fmt: skip
    yield made
    made.close()


def says(discovery, host, *addresses):
    links = [
        {"netdev": f"rail{rail}", "rail": rail, "addresses": [address]}
        for rail, address in enumerate(addresses)
    ]
    data = HostDocument(name=host, links=links, probe_port=9200).model_dump()
    discovery.received(Message(Topic(Kind.HOST_DOCUMENT, host), Sender("b", "i"), 1, data))


def rows(whole):
    told = [row for row in whole.told if row["kind"] == "address"]
    return [row["data"] | {"reason": row["reason"]} for row in told]


async def test_two_hosts_that_name_one_address_are_told_and_an_answer_decides(whole, tmp_path):
    """Attack S4."""
    host = whole.host
    answers = []
    host.prober.tables.rows = lambda *, recent: [
        SimpleNamespace(host_id=host_id(name), address=address, established=proven)
        for name, address, proven in answers
    ]
    discovery = Discovery(host, Refusals(time.monotonic))
    now = discovery._next_ns
    says(discovery, "h0", "10.0.0.1", "10.1.0.1")
    discovery.tick(now)
    assert rows(whole) == []
    says(discovery, "h1", "10.0.0.1", "10.1.0.1", "10.2.0.1")
    discovery.tick(now + APPLY_NS - 1)
    assert discovery.conflicts == (), "documents of a whole cluster come at once"
    discovery.tick(now := now + APPLY_NS)
    (row,) = rows(whole)
    assert row["reason"] == (
        "h0 and h1 both name 10.0.0.1 and 1 more addresses: neither has answered there"
    )
    assert (row["host"], row["other"], row["addresses"], row["conflict"]) == ("h0", "h1", 2, True)
    assert host.detectors.localization.open_addresses == {"10.0.0.1", "10.1.0.1"}
    # An answer as the other host, an unproven one, and one from elsewhere prove nothing.
    answers += [("h1", "10.0.0.1", True), ("h0", "10.0.0.1", False), ("h0", "10.0.0.7", True)]
    discovery.tick(now := now + APPLY_NS)
    assert len(rows(whole)) == 1
    discovery.tick(now := now + TURN_NS)
    discovery.tick(now := now + APPLY_NS)
    assert rows(whole)[-1]["answered"] == "h1"
    assert rows(whole)[-1]["reason"].endswith("h1 answers there")
    assert {one.host: [str(x.address) for x in one.addresses] for one in host.config.peers}[
        "h1"
    ] == ["10.0.0.1", "10.1.0.1", "10.2.0.1"]
    assert host.detectors.localization.open_addresses == {"10.1.0.1"}
    await asyncio.gather(discovery._storing)
    stored = json.loads((tmp_path / PEERS_FILE).read_text())
    assert stored["proven"] == {"10.0.0.1": "h1"}
    assert {x["address"] for one in stored["peers"] for x in one["addresses"]} == {
        "10.0.0.1", "10.2.0.1",
    }  # fmt: skip
    says(discovery, "h0", "10.0.0.5")
    discovery.tick(now := now + APPLY_NS)
    assert rows(whole)[-1]["reason"] == "h0 and h1 name no address in common any more"
    assert discovery.conflicts == ()
