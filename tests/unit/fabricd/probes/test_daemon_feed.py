"""The prober as the daemon sees it: what does not fit together is no answer."""

import asyncio
import time
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from fabricd.probes.client import (
    ProbeConfig,
    ProbeLink,
    ProbePath,
    ProberError,
    ProberGoneError,
)
from fabricd.probes.feed import STALE_NS, ProberFeed
from fabricd.probes.records import Direction, HeardRecord
from fabricd.probes.ring import RingError

CONFIG = ProbeConfig(1, [ProbeLink(0, "rail0", "10.0.0.1")], [ProbePath(0, 0, "10.0.0.2", 9200, 2)])
HEARD = HeardRecord(0, 1, 5, 0, 0, Direction.RX, 1, False, 1, False)


@dataclass
class Ring:
    """Stands for the mapped ring."""

    age_ns: int = 0
    running: bool = True
    epoch: int = 5
    records: list = field(default_factory=list)
    indices: tuple = (0,)
    broken: bool = False
    corrupt: int = 0

    def header(self):
        self._check()
        now = time.monotonic_ns() - self.age_ns
        return SimpleNamespace(heartbeat_ns=now, running=self.running, config_epoch=self.epoch)

    def _check(self):
        if self.broken:
            raise RingError("not sane")

    def events(self):
        self._check()
        return self.records

    def paths(self):
        self._check()
        return [SimpleNamespace(index=i) for i in self.indices]

    links = paths


def feed(tmp_path, ring):
    made = ProberFeed(tmp_path)
    made.configure(CONFIG)
    made.reader = ring
    made._epoch = 5
    return made


def test_a_living_prober_with_our_configuration_answers(tmp_path):
    made = feed(tmp_path, Ring(records=[HEARD]))
    assert len(made.paths()) == len(made.links()) == 1
    assert made.events() == [HEARD]


@pytest.mark.parametrize(
    "ring",
    [Ring(age_ns=STALE_NS + 1), Ring(running=False), Ring(epoch=4), Ring(indices=()),
     Ring(indices=(1,)), Ring(indices=(0, 1)), Ring(broken=True), None],
)  # fmt: skip
def test_anything_else_is_no_answer(tmp_path, ring):
    made = feed(tmp_path, ring)
    assert made.paths() is None
    assert made.links() is None


def test_records_of_another_configuration_or_link_are_left_out(tmp_path):
    ring = Ring(records=[replace(HEARD, config=4), replace(HEARD, link=7), HEARD])
    made = feed(tmp_path, ring)
    assert made.events() == [HEARD]
    assert made.refused == 1


def test_a_new_configuration_ends_the_old_answers_at_once(tmp_path):
    made = feed(tmp_path, Ring())
    made.configure(CONFIG)
    assert made.paths() is None


def test_records_wait_until_it_is_known_of_which_configuration_they_are(tmp_path):
    ring = Ring(records=[HEARD])
    made = feed(tmp_path, ring)
    made.configure(CONFIG)
    ring.events = lambda: pytest.fail("what is read is gone")
    assert made.events() == []
    del ring.events
    made._epoch = 5
    assert made.events() == [HEARD]


async def test_a_configuration_that_comes_while_another_is_answered(tmp_path):
    made = ProberFeed(tmp_path)
    made.configure(CONFIG)
    asked, answer = asyncio.Event(), asyncio.get_running_loop().create_future()
    other = replace(CONFIG, host_id=2)

    async def configure(config):
        if config is other:
            return 6
        asked.set()
        return await answer

    client = SimpleNamespace(configure=configure)
    first = asyncio.create_task(made._configure(client))
    await asked.wait()
    made.configure(other)
    answer.set_result(5)
    await first
    assert made.epoch == 0, "rows of the old paths have the old paths' numbers"
    assert made._dirty
    await made._configure(client)
    assert made.epoch == 6


async def test_why_the_prober_refuses_is_kept_until_it_takes_one(tmp_path):
    made = ProberFeed(tmp_path)
    made.configure(CONFIG)
    answers = [ProberError("links[0].netdev: 1 to 15 bytes"), ProberGoneError("closed"), 5]

    async def configure(_config):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    client = SimpleNamespace(configure=configure)
    with pytest.raises(ProberError):
        await made._configure(client)
    assert made.refusal == "links[0].netdev: 1 to 15 bytes"
    with pytest.raises(ProberGoneError):
        await made._configure(client)
    assert made.refusal == "links[0].netdev: 1 to 15 bytes", "one that is gone refuses nothing"
    await made._configure(client)
    assert made.refusal == ""
