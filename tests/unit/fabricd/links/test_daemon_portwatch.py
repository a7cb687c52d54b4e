"""Verbs ports that hang: looked at no more, said so, and nobody waits."""

import asyncio
import threading

import pytest
from verbs_ports import Ports

from fabricd.links.portwatch import AGAIN_S, DROP_S, PortWatch

S = 10**9
ACTIVE = {"rail0": True}


class Host:
    def __init__(self):
        self.active, self.rows = None, []

    def ports_found(self, ports):
        self.ports = ports

    def ports_read(self, active):
        self.active = active

    def record(self, _kind, reason, **_):
        self.rows.append(reason)


@pytest.fixture
def ports():
    made = Ports()
    yield made
    made.gate.set()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def test_a_read_that_hangs_is_not_waited_for_and_said_once(ports):
    host = Host()
    watch = PortWatch(ports, host, host.record, limit_s=60)
    await watch.look(["rail0"], {}, now=0)
    assert (host.active, watch.note, host.rows) == (ACTIVE, "rail0=mlx5_0/1", [])
    watch._blocking.limit_s = 0.02
    ports.gate.clear()
    for second in range(1, 5):
        await watch.look(["rail0"], {}, now=second * S)
    assert ports.reads == 2, "no second one beside it"
    assert host.rows == ["verbs ports do not answer: their state is old"]
    assert watch.note == "no answer for 3 s: rail0=mlx5_0/1"
    assert host.active == ACTIVE, "for a while what it said last holds"
    await watch.look(["rail0"], {}, now=round((2 + DROP_S) * S))
    assert host.active == {}
    ports.gate.set()
    await until(lambda: host.active)
    assert host.active == ACTIVE, "what comes late is taken"
    assert host.rows[1:] == ["verbs ports answer again"]
    assert watch.note == "rail0=mlx5_0/1"
    watch._blocking.limit_s = 60
    await watch.look(["rail0"], {}, now=100 * S)
    assert ports.reads == 3


async def test_other_links_wait_for_a_read_that_hangs(ports):
    host, other = Host(), Ports(["rail1"])
    watch = PortWatch(ports, host, host.record, make=lambda *_: other, limit_s=0.02)
    ports.gate.clear()
    await watch.look(["rail0"], {}, now=S)
    await watch.look(["rail1"], {}, now=2 * S)
    assert other.reads == 0
    ports.gate.set()
    await until(lambda: host.active)
    watch._blocking.limit_s = 60
    await watch.look(["rail1"], {}, now=3 * S)
    assert host.active == {"rail1": True}


async def test_a_mistake_in_a_read_is_told(ports):
    ports.read = lambda: 1 / 0
    host = Host()
    with pytest.raises(ZeroDivisionError):
        await PortWatch(ports, host, host.record, limit_s=60).look(["rail0"], {})


async def test_all_looks_share_one_thread(ports):
    host = Host()
    watch = PortWatch(ports, host, host.record, limit_s=60)
    seen = set()
    read = ports.read

    def reads():
        seen.add(threading.get_ident())
        return read()

    ports.read = reads
    for second in range(20):
        await watch.look(["rail0"], {}, now=second * S)
    assert ports.reads == 20
    assert len(seen) == 1, "a thread per look"


async def test_without_a_thread_ports_do_not_answer_and_nothing_is_raised(ports, monkeypatch):
    def refused(_self):
        raise RuntimeError("can't start new thread")

    host = Host()
    watch = PortWatch(ports, host, host.record, limit_s=60)
    with monkeypatch.context() as limit:
        limit.setattr(threading.Thread, "start", refused)
        await watch.look(["rail0"], {}, now=0)
    assert host.rows == ["verbs ports do not answer: their state is old"]
    await watch.look(["rail0"], {}, now=S)
    assert host.active == ACTIVE
    assert host.rows[1:] == ["verbs ports answer again"]


async def test_a_port_that_comes_after_the_start_is_found(ports):
    host, late, made = Host(), Ports(), []
    ports.incomplete, ports.netdevs, ports.note = True, [], "no verbs device"
    late.ports = {"rail0": ("mlx5_0/1",)}

    def make(*_):
        made.append(late if len(made) == 1 else ports)
        return made[-1]

    watch = PortWatch(ports, host, host.record, make=make, limit_s=60)
    ports.changed = lambda *_: False
    host.ports = {}
    for second in range(round(2 * AGAIN_S)):
        await watch.look(["rail0"], {}, now=second * S)
    assert (len(made), watch.note, host.active) == (1, "no verbs device", None), "as seldom"
    await watch.look(["rail0"], {}, now=round(2 * AGAIN_S * S))
    assert watch.note == "rail0=mlx5_0/1"
    assert host.ports == late.ports
    assert host.active == ACTIVE, "and read at once"
    for second in range(round(2 * AGAIN_S), round(5 * AGAIN_S)):
        await watch.look(["rail0"], {}, now=second * S)
    assert len(made) == 2, "no link lacks one"
