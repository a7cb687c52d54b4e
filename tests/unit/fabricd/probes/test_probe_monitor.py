"""Large packets asked of the prober: what no answer, another configuration and no support mean."""

import asyncio

import pytest
from engine_host import SEC, Host
from whole_host import WholeHost

from fabricd.detect.mtu import KEPT_NS, PROVEN
from fabricd.probes.client import ProbeConfig, ProbeLink, ProbePath, ProberError, ProberGoneError
from fabricd.probes.feed import ProberFeed
from fabricd.probes.monitor import ASK_NS, ProbeMonitor
from fabricd.probes.records import MtuRow

RAILS, PEERS = 2, "abc"
TICK = SEC


class Asked:
    """A real feed and engine with a prober that answers what it is told to."""

    def __init__(self, tmp_path):
        self.engine = Host(rails=RAILS, peers=PEERS).engine
        self.probing = ProbeMonitor()
        self.feed = ProberFeed(tmp_path)
        self.feed.incarnation = 7
        self.feed._client = self
        self.rows = [MtuRow(i, 8972, 0, SEC, 8972, 0, SEC) for i in range(RAILS * len(PEERS))]
        self.error = None
        self.asked = 0
        self.answers = 0
        self.now = 100 * SEC
        self.configure()

    def configure(self):
        links = [ProbeLink(r, f"rail{r}", f"10.{r}.0.1") for r in range(RAILS)]
        self.feed.configure(
            ProbeConfig(1, links, [ProbePath(0, 0, "10.0.0.2", 9200, 2)] * len(self.rows))
        )
        self.feed._epoch = 5
        self.probing.configure()

    def nudge(self):
        pass

    async def mtu(self):
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.rows

    def answered(self):
        self.answers += 1
        self.probing.judge_mtu(self.engine, self.now)

    async def tick(self, ns=TICK):
        """One of the daemon's."""
        self.now += ns
        self.probing.ask(self.feed, self.now, self.answered)
        changed = self.probing.judge_mtu(self.engine, self.now)
        await asyncio.sleep(0)  # the question
        await asyncio.sleep(0)  # and what follows from the answer
        return changed

    def hole(self, *indices):
        for index in indices:
            self.rows[index] = self.rows[index]._replace(tx_missing=PROVEN)

    def said(self):
        holes = [*(x.netdev for x in self.engine.links if x.mtu)]
        return holes + [p.index for p in self.engine.paths if p.mtu]


@pytest.fixture
async def asked(tmp_path):
    made = Asked(tmp_path)
    made.hole(0, 1, 3)
    await made.tick()
    assert made.said() == ["rail0", 3], "judged when it is answered, not a tick later"
    return made


async def test_an_answer_is_asked_for_every_other_tick(asked):
    for _ in range(2 * ASK_NS // TICK):
        await asked.tick()
    assert (asked.asked, asked.answers) == (3, 3)


async def test_another_configuration_keeps_what_was_found_and_asks_at_the_next_tick(asked):
    before = asked.asked
    asked.configure()
    assert asked.said() == ["rail0", 3]
    asked.rows = [MtuRow(i, 0, 0, 0, 0, 0, 0) for i in range(len(asked.rows))]
    await asked.tick(ASK_NS // 4)
    assert asked.asked == before + 1
    assert asked.said() == ["rail0", 3]
    asked.rows = [MtuRow(i, 8972, 0, asked.now, 0, 0, 0) for i in range(len(asked.rows))]
    for _ in range(ASK_NS // TICK):
        await asked.tick()
    assert asked.said() == []


async def test_a_prober_that_knows_no_large_packets_ends_what_was_found(asked):
    asked.error = ProberError("op: 'mtu' is none of …")
    for _ in range(ASK_NS // TICK + 1):
        await asked.tick()
    assert asked.said() == []
    assert asked.probing.mtu_summary(0) == "no large packet was sent yet"
    before = asked.asked
    await asked.tick(ASK_NS)
    assert asked.asked == before, "asked once"
    # The next prober does.
    asked.error, asked.feed.incarnation = None, 8
    await asked.tick(ASK_NS)
    assert asked.said() == ["rail0", 3]


async def test_without_an_answer_what_was_found_is_believed_for_a_while(asked):
    began, asked.error = asked.now, ProberGoneError("closed")
    while asked.now + TICK < began + KEPT_NS:
        await asked.tick()
        assert asked.said() == ["rail0", 3]
    assert await asked.tick()
    assert asked.said() == []


async def test_a_reload_of_the_whole_host_keeps_what_was_found(tmp_path):
    whole = WholeHost(tmp_path)
    whole.link("rail1").mtu = "MTU black hole"
    whole.host.reconfigure(whole.host.config)
    assert whole.link("rail1").mtu == "MTU black hole"
    whole.close()
