"""Readers of NICs in a made-up sysfs, and the sweeper that runs them in threads."""

import threading
import time

import pytest

from fabricd.nics.reader import CounterReader, Reading, SlowReader
from fabricd.nics.sweeper import Sweeper
from telemetry.counters.types import Status

S = 10**9


def test_a_link_that_is_not_there_says_why(tmp_path):
    reader = CounterReader("nosuch9", sysfs=tmp_path)
    why = {s.source: s.reason for s in reader.read(S).statuses}
    reader.close()
    assert why["link_stats"] == "no such device"
    assert why["verbs"] == "no verbs port"
    slow = SlowReader("nosuch9", sysfs=tmp_path)
    why = {s.source: s.reason for s in slow.read(S).statuses}
    slow.close()
    assert why["pci"] == "not a PCI device"
    assert why["devlink"] == "no device behind it"
    assert why["module"]


class Cage:
    """A module source that is off or on, or a driver's nonsense; notes when it was asked."""

    def __init__(self):
        self.asked, self.on, self.error = [], False, None

    @property
    def status(self):
        return Status("module", "nosuch9", on=self.on, reason="" if self.on else "empty")

    def read(self, now_ns):
        self.asked.append(now_ns // S)
        if self.error:
            raise self.error

    def close(self):
        pass


def test_an_empty_cage_is_looked_into_less_often_until_there_is_something(tmp_path):
    cage = Cage()
    slow = SlowReader("nosuch9", module_ns=30 * S, sysfs=tmp_path, module=cage)
    for second in range(0, 400, 5):
        cage.on = second >= 250
        slow.read((1000 + second) * S)
    slow.close()
    assert cage.asked == [1000 + s for s in (0, 30, 120, 210, 300, 330, 360, 390)]


def test_a_source_that_raises_does_not_keep_the_others_from_being_read(tmp_path):
    cage = Cage()
    cage.error = RuntimeError("nonsense")
    slow = SlowReader("nosuch9", module_ns=30 * S, sysfs=tmp_path, module=cage)
    with pytest.raises(RuntimeError):
        slow.read(1000 * S)
    assert {s.source for s in slow.read(1005 * S).statuses} >= {"pci", "devlink"}
    assert cage.asked == [1000], "its own turn is past"
    slow.close()


@pytest.mark.parametrize("device", ["", "mlx5_0"])
def test_a_verbs_port_and_its_counters_in_a_sysfs(tmp_path, device):
    port = tmp_path / "infiniband/mlx5_0/ports/1"
    (port / "gid_attrs/ndevs").mkdir(parents=True)
    (port / "counters").mkdir()
    (port / "gid_attrs/ndevs/0").write_text("\n" if device else "rail1\n")

    def count(symbol_error, link_downed):
        (port / "counters/symbol_error").write_text(f"{symbol_error}\n")
        (port / "counters/link_downed").write_text(f"{link_downed}\n")

    reader = CounterReader("rail1", device=device, sysfs=tmp_path)
    count(5, 3)
    assert reader.read(S).steps == {}
    count(25, 4)
    found = reader.read(3 * S)
    reader.close()
    assert found.steps["symbol_errors"].increase == 20
    assert found.steps["link_downed"].increase == 1
    assert ("ib_port", True) in {(s.source, s.on) for s in found.statuses}


def test_a_port_that_the_gid_table_names_later_is_found(tmp_path):
    port = tmp_path / "infiniband/mlx5_0/ports/1"
    (port / "gid_attrs/ndevs").mkdir(parents=True)
    (port / "counters").mkdir()
    (port / "counters/symbol_error").write_text("5\n")
    ndev = port / "gid_attrs/ndevs/0"
    ndev.write_text("\n")
    reader = CounterReader("bond0", sysfs=tmp_path)
    assert reader.read(S).rdma_device == ""
    ndev.write_text("bond0\n")
    assert reader.read(31 * S).rdma_device == "", "256 files of each device: not all the time"
    assert reader.read(72 * S).rdma_device == "mlx5_0"
    ndev.write_text("\n")
    assert reader.read(200 * S).rdma_device == "mlx5_0", "an address that is gone is no other port"
    reader.close()


@pytest.mark.parametrize(("said", "speed"), [("25000", 25e9), ("65535", None), ("-1", None)])
def test_a_speed_that_no_link_has_is_not_known(tmp_path, said, speed):
    net = tmp_path / "net/nosuch9"
    net.mkdir(parents=True)
    (net / "speed").write_text(f"{said}\n")
    slow = SlowReader("nosuch9", sysfs=tmp_path, module=Cage())
    assert slow.read(S).gauges["speed"].get("speed") == speed
    slow.close()


class FakeReader:
    """Counts its reads; hangs while `gate` is clear."""

    kind = "counters"

    def __init__(self, netdev):
        self.netdev, self.reads, self.closed = netdev, 0, False
        self.gate, self.fails = threading.Event(), False
        self.gate.set()

    def read(self, now_ns):
        self.reads += 1
        assert self.gate.wait(60)
        if self.fails:
            raise ValueError("nonsense from a driver")
        return Reading(self.netdev, self.kind, now_ns)

    def close(self):
        self.closed = True


def until(what, seconds=30.0):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        threading.Event().wait(0.005)


def test_a_nic_that_hangs_keeps_no_other_waiting():
    readers: dict[str, FakeReader] = {}
    got: list[Reading] = []

    def make(name):
        return readers.setdefault(name, FakeReader(name))

    def deliver(batch):
        got.extend(batch)
        sweeper.taken()

    sweeper = Sweeper("test", make, deliver, period_s=0.01, stuck_s=0.2)
    sweeper.links(["a", "b", "c"])
    sweeper.check()
    until(lambda: all(r.reads > 2 for r in readers.values()))
    readers["b"].gate.clear()
    until(lambda: sweeper.check().get("b", 0) > 0)
    before = readers["c"].reads
    until(lambda: readers["c"].reads > before + 2)
    readers["b"].gate.set()
    until(lambda: not sweeper.check())
    before = readers["b"].reads
    until(lambda: readers["b"].reads > before + 2)
    readers["a"].fails = True
    until(lambda: any("nonsense" in r.error for r in got))
    before = readers["c"].reads
    until(lambda: readers["c"].reads > before + 2)
    sweeper.links(["a", "c"])
    until(lambda: readers["b"].closed)
    sweeper.close(30.0)
    assert readers["c"].closed


def test_nothing_piles_up_while_nobody_takes():
    reader = FakeReader("a")
    batches: list[list[Reading]] = []
    sweeper = Sweeper("test", lambda _: reader, batches.append, period_s=0.01)
    sweeper.links(["a"])
    sweeper.check()
    until(lambda: reader.reads == 1)
    threading.Event().wait(0.2)
    assert reader.reads == 1
    sweeper.taken()
    until(lambda: reader.reads == 2)
    sweeper.close(30.0)
