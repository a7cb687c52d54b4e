"""The cycle: stored before it leaves, nothing without a complete view, stopped means stopped."""

import asyncio
import contextlib

import pytest

from compute.config import parse
from compute.decide.effects import FenceIssued, JobState, Order, Record
from compute.reserve import Reserve
from compute.service import Service
from compute.signatures import load_or_create
from compute.store import Store, StoreError
from telemetry.broker.interface import NotConnectedError
from telemetry.messages.documents import ComputeJob, ComputeOrder, Fence, LedgerHead
from telemetry.messages.envelope import Message, Sender
from telemetry.messages.topics import Kind, Topic

LONG_S = 30
FENCE = Fence(id="j/h1/i", job="j", host="h1", incarnation="i")
ORDER = ComputeOrder(fences=[FENCE])
EFFECTS = [
    FenceIssued(FENCE),
    Record("fence", {"job": "j", "host": "h1", "id": FENCE.id}),
    JobState("j", ComputeJob(job="j", phase="running", generation=1, ranks={"0": "h2 p2"})),
    Order("h2", ORDER),
]


class TinyCore:
    """Says once what it was given to say."""

    def __init__(self):
        self.effects, self.decisions, self.calls = [], 0, []
        self.pending = True
        self.urgent = False

    def __getattr__(self, name):
        return lambda *arguments, **named: self.calls.append((name, *arguments))

    def decide(self, now):
        self.decisions += 1
        effects, self.effects = self.effects, []
        return effects

    def wake_at(self):
        return None


class Site:
    """A service whose broker is a list of what it published."""

    def __init__(self, tmp_path, extra=""):
        text = (
            f'name = "c0"\nstate_dir = "{tmp_path}"\nstop_file = "{tmp_path}/STOP"\n'
            f'[broker]\nhost = "127.0.0.1"\n[metrics]\nlisten = ""\n{extra}'
        )
        self.where, self.core = tmp_path, TinyCore()
        self.store = Store(tmp_path / "compute.db")
        key = load_or_create(tmp_path / "ledger.key")
        self.service = Service(
            parse(text, "c"), self.core, self.store, Sender("b", "i"), key, "1.0"
        )
        self.link = self.service._link
        self.published = []
        self.fences_then = []
        self.link.publish_order = self.publish_order
        self.link.client.run = asyncio.Event().wait
        self.events = self.service._events_link
        self.events.client.run = asyncio.Event().wait

    async def publish_order(self, host, order):
        if not self.link.complete:
            raise NotConnectedError("gone")
        self.fences_then.append([fence.id for fence in self.store.fences()])
        self.published.append((host, order))
        self.link.ordered[host] = order

    def connected(self, complete=True):
        self.link.complete = complete
        self.link.syncs += complete
        self.service._news.set()

    def say(self, *effects):
        self.core.effects = list(effects)
        self.service._news.set()

    async def until(self, condition):
        async with asyncio.timeout(LONG_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def cycles(self, count=3):
        """So many cycles later: what was to happen has happened."""
        for _ in range(count):
            at = self.service.figures.cycle_at
            self.service._news.set()
            await self.until(lambda at=at: self.service.figures.cycle_at > at)


@contextlib.asynccontextmanager
async def running(site):
    stop = asyncio.Event()
    task = asyncio.create_task(site.service.run(stop))
    try:
        yield site
    finally:
        stop.set()
        await task
        site.store.close()


@pytest.fixture
async def site(tmp_path):
    async with running(Site(tmp_path)) as site:
        yield site


async def test_nothing_is_decided_before_the_view_is_complete(site):
    site.say(*EFFECTS)
    await site.cycles()
    assert site.core.decisions == 0
    site.connected()
    await site.until(lambda: site.published)
    assert site.published == [("h2", ORDER)]


async def test_what_speaks_against_a_host_ends_a_pause(site):
    pause = asyncio.create_task(site.service._pause(3600.0))
    await asyncio.sleep(0)
    site.service._note_news()  # of no urgency
    await asyncio.sleep(0)
    assert not pause.done()
    site.core.urgent = True
    site.service._note_news()
    await asyncio.wait_for(pause, 60)
    await asyncio.wait_for(site.service._pause(3600.0), 60)  # it came before


async def test_on_a_full_disk_a_job_of_one_host_takes_no_room_from_decisions(site):
    """What it is left out of is the ledger alone; how many were is told when there is room."""
    site.store.reserve = Reserve(site.where / "none", size=1 << 60)
    site.connected()
    alone = ComputeJob(job="a", phase="running", hosts=["h9"])
    flood = [JobState("a", alone), *(Record("phase", {"job": "a", "n": n}) for n in range(50))]
    site.say(*EFFECTS, *flood)
    await site.until(lambda: site.published)
    kinds = [entry.record["kind"] for entry in site.store.entries()]
    assert kinds[0] == "fence"
    assert "phase" not in kinds
    assert site.service.board.jobs["a"].state == alone
    await site.until(lambda: site.service.figures.records_left_out == 50)
    told = [entry.record for entry in site.store.entries()][-1]
    assert (told["kind"], told["fields"]) == ("records_left_out", {"host": "h9", "count": 50})


async def test_a_job_that_is_no_more_is_forgotten(site):
    site.connected()
    for number in range(20):
        name = f"j{number}"
        site.say(JobState(name, ComputeJob(job=name, phase="running")), JobState(name, None))
        await site.cycles(2)
    assert site.service._told_states == set()


async def test_a_fence_is_stored_before_the_order_that_contains_it_leaves(site):
    site.connected()
    site.say(*EFFECTS)
    await site.until(lambda: site.published)
    assert site.fences_then == [[FENCE.id]]
    assert [entry.record["kind"] for entry in site.store.entries()] == ["fence"]
    assert [job.job for job, _ in site.store.jobs()] == ["j"]


async def test_what_cannot_be_stored_does_not_leave_and_is_stored_later(site):
    commit, failures = site.store.commit, []

    def fails(*arguments):
        failures.append(arguments)
        raise StoreError("disk full")

    site.store.commit = fails
    site.connected()
    site.say(*EFFECTS)
    await site.until(lambda: len(failures) >= 2)
    decisions = site.core.decisions
    await site.cycles()
    assert site.published == []
    assert site.core.decisions == decisions, "nothing new is decided meanwhile"
    site.store.commit = commit
    await site.until(lambda: site.published)
    assert site.fences_then == [[FENCE.id]]
    assert site.service.figures.store_failures >= 2
    assert site.service.figures.fences == 1


async def test_after_a_broken_connection_only_what_is_decided_anew_leaves(site):
    site.connected()
    await site.cycles()
    site.connected(complete=False)
    decisions = site.core.decisions
    site.say(*EFFECTS)
    await site.cycles()
    assert (site.core.decisions, site.published) == (decisions, [])
    site.link.ordered.clear()
    site.connected()
    await site.until(lambda: site.published)


async def test_an_order_that_the_broker_has_lost_is_published_again(site):
    site.connected()
    site.say(*EFFECTS)
    await site.until(lambda: len(site.published) == 1)
    site.connected(complete=False)
    await site.cycles()
    site.link.ordered.clear()
    site.connected()
    await site.until(lambda: len(site.published) == 2)
    assert site.published[1] == ("h2", ORDER)


async def test_a_stop_file_ends_all_action_and_is_recorded(site):
    site.connected()
    await site.cycles()
    (site.where / "STOP").write_text("switch work\n")
    await site.until(lambda: site.service.figures.stopped)
    assert ("stop", True, "switch work") in [call[:3] for call in site.core.calls]
    site.say(*EFFECTS)
    await site.cycles()
    assert site.published == []
    (site.where / "STOP").unlink()
    await site.until(lambda: site.published)
    await site.until(lambda: site.store.last.number == 3)
    kinds = [entry.record["kind"] for entry in site.store.entries()]
    assert kinds == ["stop", "fence", "stop"]


async def test_fences_of_an_earlier_life_are_given_to_the_core_first(tmp_path):
    store = Store(tmp_path / "compute.db")
    store.commit([FENCE])
    store.close()
    async with running(Site(tmp_path)) as site:
        await site.cycles(1)
        assert site.core.calls[0][:2] == ("restore", [FENCE])


async def test_the_sites_command_runs_for_a_fence_that_was_stored(tmp_path):
    extra = f'[exec]\ncommand = ["/bin/sh", "-c", "cat > {tmp_path}/said"]\n'
    async with running(Site(tmp_path, extra)) as site:
        site.connected()
        site.say(*EFFECTS)
        await site.until(lambda: site.service.figures.commands["done"] or (
            site.service._exec.results["done"]))  # fmt: skip
        assert FENCE.id in (tmp_path / "said").read_text()


async def test_a_head_is_signed_at_the_end(tmp_path):
    async with running(Site(tmp_path)) as site:
        site.connected()
        site.say(*EFFECTS)
        await site.until(lambda: site.published)
    store = Store(tmp_path / "compute.db", read_only=True)
    assert store.heads()[-1].number == 1
    store.close()


async def test_a_ledger_older_than_what_was_published_is_noticed_and_the_head_is_kept(tmp_path):
    async with running(Site(tmp_path)) as site:
        site.connected()
        site.say(*EFFECTS)
        await site.until(lambda: site.published)
        await asyncio.to_thread(site.service._sign_now)
        published = LedgerHead(**site.store.heads()[-1].__dict__)
        site.link.head = published
        site.connected()
        await site.cycles()
        assert site.service.figures.ledger_lost == 0
        site.link.head = published.model_copy(update={"number": 9})
        site.connected()
        await site.cycles()
        assert site.service.figures.ledger_lost == 1
        site.link.head = published.model_copy(update={"hash": "0" * 64})
        site.connected()
        await site.cycles()
        assert site.service.figures.ledger_lost == 1


def event(number, **data):
    return Message(Topic(Kind.HOST_EVENT, "h1"), Sender("b", "i"), number,
                      {"kind": "down", "text": "t"} | data)  # fmt: skip


async def test_an_event_is_in_the_ledger_once_however_often_it_comes(site):
    for number in (1, 2, 1, 2, 3):
        site.events.received(event(number), retained=False)
    await site.until(lambda: site.store.last is not None and site.store.last.number == 3)
    site.events.received(event(2), retained=False)
    site.events.received(event(4, surplus=1), retained=False)
    await site.cycles()
    records = [entry.record for entry in site.store.entries()]
    assert [one["kind"] for one in records] == ["host_event"] * 3
    assert records[0]["fields"] == {"host": "h1", "event": "down", "text": "t", "fields": {}}
    assert site.store.events(9) == []


async def test_an_event_that_cannot_be_stored_is_not_acknowledged(site):
    site.store._db.execute("PRAGMA query_only=1")
    with pytest.raises(OSError, match=r"compute\.db"):
        site.events.received(event(1), retained=False)
    site.store._db.execute("PRAGMA query_only=0")
    site.events.received(event(1), retained=False)
    await site.until(lambda: site.store.last is not None)


def test_an_event_that_was_stored_survives_kill_9(tmp_path):
    store = Store(tmp_path / "compute.db")
    assert store.add_event("/host/h1/i/1", {"host": "h1"})
    assert not store.add_event("/host/h1/i/1", {"host": "h1"})
    store.close()
    again = Store(tmp_path / "compute.db")
    assert [one.id for one in again.events(9)] == ["/host/h1/i/1"]
    again.commit(records=again.events(9))
    assert not again.add_event("/host/h1/i/1", {"host": "h1"})
    assert again.events(9) == []
    again.close()
