"""Engines: orders reach the broker as wanted; the site's command runs once for each action."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from compute.engines.base import Action, Decided
from compute.engines.exec import OUTPUT_BYTES, ExecEngine, run_command
from compute.engines.live import IN_FLIGHT, LiveEngine, acts
from compute.store import Store
from telemetry.broker.interface import NotConnectedError
from telemetry.messages.documents import ComputeOrder, Fence

LONG_S = 30


def order(*, fences=(), generation=0, kill=(), phase="running"):
    job = {"incarnation": "i", "phase": phase, "kill": list(kill),
           "generation": {"number": generation} if generation else None}  # fmt: skip
    made = [Fence(id=name, job="j", host="h", incarnation="i") for name in fences]
    return ComputeOrder(fences=made, jobs={"j": job})


class Broker:
    """Holds orders; may be slow or gone."""

    def __init__(self):
        self.complete = True
        self.ordered = {}
        self.published = []
        self.open = asyncio.Event()
        self.open.set()
        self.under_way = Counter()
        self.most = 0

    async def publish_order(self, host, order):
        self.under_way[host] += 1
        assert self.under_way[host] == 1, "two orders to one host under way"
        self.most = max(self.most, self.under_way.total())
        try:
            await self.open.wait()
            if not self.complete:
                raise NotConnectedError("gone")
            self.published.append((host, order))
            self.ordered[host] = order
        finally:
            self.under_way[host] -= 1


@pytest.fixture
async def live():
    broker = Broker()
    engine = LiveEngine(broker)
    task = asyncio.create_task(engine.run())
    yield engine, broker
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def settle():
    for _ in range(50):
        await asyncio.sleep(0)


async def test_only_what_differs_from_what_the_broker_holds_is_published(live):
    engine, broker = live
    broker.ordered["h2"] = order(generation=1)
    engine.apply(Decided({"h1": order(generation=1), "h2": order(generation=1)}))
    await settle()
    assert broker.published == [("h1", order(generation=1))]


async def test_the_newest_order_wins_however_slow_the_broker(live):
    engine, broker = live
    broker.open.clear()
    for number in range(1, 5):
        engine.apply(Decided({f"h{i}": order(generation=number) for i in range(40)}))
        await settle()
    assert broker.most == IN_FLIGHT
    broker.open.set()
    for _ in range(20):
        await settle()
    assert set(broker.ordered) == {f"h{i}" for i in range(40)}
    assert all(one == order(generation=4) for one in broker.ordered.values())


async def test_nothing_leaves_without_a_complete_connection_and_all_is_put_right_after(live):
    engine, broker = live
    broker.complete = False
    engine.apply(Decided({"h1": order(generation=1)}))
    await settle()
    assert broker.published == []
    broker.complete = True
    engine.reconcile(withdraw=False)
    await settle()
    assert broker.ordered == {"h1": order(generation=1)}


async def test_an_order_of_an_earlier_life_is_withdrawn_only_when_asked(live):
    engine, broker = live
    broker.ordered = {"h9": order(generation=3)}
    engine.reconcile(withdraw=False)
    await settle()
    assert broker.ordered == {"h9": order(generation=3)}
    engine.reconcile(withdraw=True)
    await settle()
    assert broker.ordered == {"h9": ComputeOrder()}


@pytest.mark.parametrize(
    ("before", "after", "does"),
    [
        (order(generation=1), order(generation=2, phase="proposed"), True),
        (order(generation=2, phase="proposed"), order(generation=2), False),
        (order(), order(fences=["a"]), True),
        (order(fences=["a"]), order(fences=["a", "b"]), True),
        (order(fences=["a", "b"]), order(fences=["b"]), False),
        (order(generation=1), order(generation=1, kill=["p"]), True),
        (order(generation=1, kill=["p"]), order(generation=1), False),
        (order(generation=1), order(phase="ended"), False),
        (ComputeOrder(), order(phase="waiting"), False),
        (ComputeOrder(), order(generation=1), True),
    ],
)
def test_what_acts(before, after, does):
    assert acts(after, before) is does


async def test_while_stopped_only_what_does_not_act_leaves(live):
    engine, broker = live
    broker.ordered = {"h1": order(generation=1), "h2": order(generation=1)}
    engine.pause(True)
    engine.apply(Decided({"h1": order(generation=2), "h2": order(phase="ended")}))
    await settle()
    assert broker.published == [("h2", order(phase="ended"))]
    engine.pause(False)
    await settle()
    assert broker.ordered["h1"] == order(generation=2)


# -- exec


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "compute.db")
    yield store
    store.close()


@pytest.fixture
def site(tmp_path, store):
    """Runs a shell script as the site's command until nothing waits; returns the engine."""

    async def run(script, actions=("a",), *, timeout_s=LONG_S, attempts=3, paused=False):
        engine = ExecEngine(
            ("/bin/sh", "-c", f"cd {tmp_path}\n{script}"), store, "c0",
            timeout_s=timeout_s, attempts=attempts, pause_s=0.001,
        )  # fmt: skip
        actions = [Action(name, "fence", {"host": "h1"}) for name in actions]
        store.commit(commands=[(a.id, {"kind": a.kind, "fields": a.fields}) for a in actions])
        engine.pause(paused)
        task = asyncio.create_task(engine.run())
        engine.apply(Decided(actions=actions))
        if paused:
            await asyncio.sleep(0.05)
        else:
            async with asyncio.timeout(LONG_S):
                while store.pending_commands():  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return {name: n for name, n in engine.results.items() if n}

    return run


async def test_the_command_gets_the_action_as_json(site, tmp_path):
    assert await site("cat >> said") == {"done": 1}
    assert json.loads((tmp_path / "said").read_text()) == {
        "version": 1, "id": "a", "compute": "c0", "kind": "fence", "fields": {"host": "h1"},
    }  # fmt: skip
    assert await site("cat >> said") == {}, "an id is done once"


async def test_a_failure_is_tried_again_and_then_given_up(site, tmp_path):
    assert await site("echo x >> tries; exit 1") == {"failed": 3, "given_up": 1}
    assert (tmp_path / "tries").read_text() == "x\n" * 3


async def test_a_command_that_succeeds_later_is_done(site):
    script = "test -e flag && exit 0; touch flag; kill -9 $$"
    assert await site(script) == {"failed": 1, "done": 1}


async def test_a_refusal_is_final(site):
    assert await site("echo no; exit 65") == {"refused": 1}


def noted(store):
    """(result, output, over) of all runs, as the ledger has them."""
    fields = [one.record["fields"] for one in store.entries() if one.record["kind"] == "exec"]
    assert all(one["on"] == "fence" and one["host"] == "h1" for one in fields)
    assert [one["attempt"] for one in fields] == list(range(1, len(fields) + 1))
    return [(one["result"], one["output"], one["over"]) for one in fields]


async def test_each_run_is_in_the_ledger_with_its_output(site, store):
    script = "test -e flag && { echo is off; exit 0; }; touch flag; echo no answer; exit 7"
    await site(script)
    assert noted(store) == [
        ("failed", "exit status 7: no answer", False), ("done", "is off", True),
    ]  # fmt: skip


async def test_what_a_command_said_before_it_was_killed_is_in_the_ledger(site, store):
    script = "echo begun; sleep 1000"
    await site(script, attempts=1, timeout_s=1.0)
    assert noted(store) == [("timeout", "no end within 1 s: begun", True)]


async def test_of_endless_output_the_end_is_kept(site, store):
    script = "head -c 1000000 /dev/zero | tr '\\0' x; echo the end"
    await site(script)
    [(result, output, _)] = noted(store)
    assert (result, len(output), output[-7:]) == ("done", OUTPUT_BYTES - 1, "the end")


async def test_a_command_that_does_not_read_its_stdin_is_done(site, store):
    await site("exec 0<&-; exit 0")
    assert noted(store) == [("done", "", True)]


async def test_a_command_that_does_not_end_is_killed_with_its_children(site, tmp_path):
    script = "sleep 1000 & echo $! > child; wait"
    assert await site(script, timeout_s=0.3, attempts=1) == {"timeout": 1, "given_up": 1}
    child = int((tmp_path / "child").read_text())
    assert _state(child) in ("Z", "X", "gone")


def _state(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.read_text().rpartition(")")[2].split()[0] if stat.exists() else "gone"


async def test_one_that_fails_does_not_hold_up_the_others(site, tmp_path):
    script = "read line; case $line in *first*) exit 1;; *) echo x >> done;; esac"
    result = await site(script, ("first", "second", "third"))
    assert result == {"failed": 3, "given_up": 1, "done": 2}


async def test_while_stopped_no_command_is_begun(site, tmp_path):
    assert await site("touch ran", paused=True) == {}
    assert not (tmp_path / "ran").exists()
    assert await site("touch ran", ("b",)) == {"done": 2}, "what waited goes on afterwards"


async def test_a_command_that_cannot_be_started_is_a_failure():
    outcome = await run_command(("/no/such/command",), {}, 1)
    assert (outcome.result, "No such file" in outcome.detail) == ("failed", True)
