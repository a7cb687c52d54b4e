"""One user's word makes no rail slow, and is told as a claim; others' or counters confirm it."""

from types import SimpleNamespace

import pytest
from slow_job import Job

from fabricd.delay.watch import DelayWatch
from fabricd.detect.rules import LINK_SPEED, TABLE, Class, Finding
from fabricd.jobs.owners import Owners
from fabricd.timeline.levels import level
from telemetry.events import LinkState

SECOND = 10**9
SLOW = {"rail1": 100, "else": 40}
ALICE, MALLORY = 1001, 1002
SUBORDINATE = range(100_000, 165_536)


class Host:
    """A host of four rails whose prober says nothing."""

    def __init__(self):
        self.watch = DelayWatch(owners=Owners(frozenset({0}), (SUBORDINATE,)))
        links = [
            SimpleNamespace(
                netdev=f"rail{n}", rail=n, index=n, counters=[],
                health=SimpleNamespace(state=LinkState.UP, reason=""),
            )
            for n in range(4)
        ]  # fmt: skip
        self.engine = SimpleNamespace(
            links=links, paths=[], overrides=SimpleNamespace(off=frozenset())
        )
        self.feed = SimpleNamespace(reader=None, epoch=0, header=lambda: None)
        self.watch.configure(self.engine)
        self.now = 0
        self.rows = []

    def run(self, *jobs, seconds=30, latency=SLOW):
        for _ in range(seconds):
            pages = [page for job in jobs for page in job.scan(latency)]
            for _ in self.watch.jobs_seen(pages):
                pass
            self.now += SECOND
            self.rows += self.watch.tick(self.feed, [], self.engine, self.now)


def test_a_single_users_job_makes_no_rail_slow_and_is_told_as_its_claim():
    host = Host()
    host.run(Job(uid=MALLORY, name="evil"))
    assert host.watch.slow("rail1") is False
    assert (host.watch.claim_uid("rail1"), host.watch.claim_uid("rail0")) == (MALLORY, None)
    (row,) = [row for row in host.rows if row.link == "rail1" and row.data["condition"] != "fine"]
    assert row.data == {"condition": "slow_claimed", "uid": MALLORY, "job": "evil"}
    assert row.reason.startswith("slow by the claim of job evil of uid 1002 alone: messages take ")
    assert level(row) == "info"
    assert host.watch.slow_texts([ALICE]) == {}, "no reason in another user's job"
    assert "claim of job evil of uid 1002" in host.watch.slow_texts([MALLORY])["rail1"]
    assert host.watch.slow_claims()["rail1"]["uid"] == MALLORY
    host.run(Job(uid=MALLORY, name="evil"), latency=40)
    assert host.watch.claim_uid("rail1") is None


@pytest.mark.parametrize("uids", [(0,), (ALICE, MALLORY), (0, MALLORY)])
def test_root_or_two_users_are_evidence(uids):
    host = Host()
    host.run(*(Job(uid=uid, name=f"job{uid}", seed=uid) for uid in uids))
    assert host.watch.slow("rail1") is True
    assert host.watch.claim_uid("rail1") is None
    (row,) = [row for row in host.rows if row.link == "rail1" and row.data["condition"] != "fine"]
    assert row.data["condition"] == "slow"
    assert "claim" not in host.watch.slow_texts()["rail1"]


@pytest.mark.parametrize(
    "uids", [(MALLORY, 100_001), (100_001, 100_002), (MALLORY, MALLORY)], ids=str
)
def test_subordinate_uids_and_several_jobs_are_one_users_word(uids):
    host = Host()
    host.run(*(Job(uid=uid, name=f"job{n}", seed=n) for n, uid in enumerate(uids)))
    assert host.watch.slow("rail1") is False
    assert host.watch.claim_uid("rail1") in uids


def test_a_counter_of_the_link_confirms_and_congestion_does_not():
    """A job can fill queues by itself; it cannot make a port negotiate another speed."""
    congestion = next(rule for rule in TABLE if rule.cls is Class.CONGESTION)
    host = Host()
    host.engine.links[1].counters = [Finding(congestion, 0, 0.0, 1, "pauses")]
    host.run(Job(uid=ALICE))
    assert host.watch.slow("rail1") is False
    host.engine.links[1].counters = [Finding(LINK_SPEED, 0, 0.0, 1, "100 of 400 Gbit/s")]
    host.run(Job(uid=ALICE))
    assert host.watch.slow("rail1") is True


def test_rows_of_claims_have_a_rate():
    host = Host()
    for turn in range(20):
        host.run(Job(uid=2000 + turn, name=f"job{turn}"), seconds=14)
    assert len([row for row in host.rows if row.data["condition"] == "slow_claimed"]) <= 4
