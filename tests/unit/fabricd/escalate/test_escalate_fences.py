"""Orders of several fabric-computes, fences, and the sockets that a fence ends."""

import asyncio
import contextlib
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.config.loader import parse as parse_config
from fabricd.escalate.fence_keeper import FenceKeeper, FenceStore
from fabricd.escalate.fences import JOB, MOST_FENCES, MOST_UNORDERED, FenceError, FenceRegistry
from fabricd.escalate.orders import MOST_COMPUTES, Orders
from fabricd.escalate.sockets import Target, addresses_of, matching, parse_socket
from telemetry.counters.types import CounterError
from telemetry.messages.documents import ComputeOrder, Fence
from telemetry.messages.envelope import BadMessageError

SEC = 10**9


def fence(name, job="j", host="h1", incarnation="x", uid=None):
    return Fence(id=name, job=job, host=host, incarnation=incarnation, uid=uid)


def by_id(*fences):
    return {one.id: one for one in fences}


# -- orders


def test_the_newest_order_of_each_fabric_compute_is_in_force():
    orders = Orders()
    assert orders.update("a", ComputeOrder(fences=[fence("f1")], jobs={"j": {"n": 1}}))
    assert not orders.update("a", ComputeOrder(fences=[fence("f1")], jobs={"j": {"n": 1}}))
    assert orders.update("b", ComputeOrder(fences=[fence("f1"), fence("f2")], jobs={}))
    assert set(orders.fences()) == {"f1", "f2"}
    assert orders.job_orders("j") == {"a": {"n": 1}}
    assert orders.update("a", ComputeOrder())
    assert orders.job_orders("j") == {}
    assert orders.remove("b")
    assert (orders.fences(), orders.computes) == ({}, ["a"])


def test_while_stopped_nothing_new_comes_into_force():
    orders = Orders()
    orders.update("a", ComputeOrder(jobs={"j": {"n": 1}}))
    assert not orders.stop(stopped=True, reason="maintenance")
    assert not orders.update("a", ComputeOrder(fences=[fence("f1")], jobs={"j": {"n": 2}}))
    assert orders.job_orders("j") == {"a": {"n": 1}}
    assert (orders.stopped, orders.stop_reason) == (True, "maintenance")
    assert orders.stop(stopped=False)
    assert orders.job_orders("j") == {"a": {"n": 2}}
    assert set(orders.fences()) == {"f1"}


def test_so_many_fabric_computes_and_no_more():
    orders = Orders()
    for number in range(MOST_COMPUTES):
        orders.update(f"c{number}", ComputeOrder())
    with pytest.raises(BadMessageError, match="order of more"):
        orders.update("more", ComputeOrder())
    assert orders.update("c0", ComputeOrder(jobs={"j": {}}))


# -- fences


def test_acknowledged_only_when_everybody_has_applied_it():
    registry = FenceRegistry(["store", "page"], 2 * SEC)
    new = registry.order(by_id(fence("f1"), fence("f2", job="k")), {"j": 7}, SEC)
    assert [one.id for one in new] == ["f1", "f2"]
    assert not registry.applied("f2", "store")
    assert registry.applied("f2", "page"), "no fabric-run of its job is here"
    assert registry.acknowledged() == ["f2"]
    assert not registry.applied("f1", "store")
    assert not registry.applied("f1", "page")
    assert registry.acknowledged() == ["f2"]
    assert registry.applied("f1", JOB)
    assert not registry.applied("f1", JOB), "once"
    assert not registry.applied("other", JOB)
    assert registry.acknowledged() == ["f1", "f2"]


def test_a_fence_is_of_one_users_job_and_nobody_elses_run_has_to_apply_it():
    registry = FenceRegistry(["page"], SEC)
    registry.order(by_id(fence("f1", uid=7), fence("f2", uid=8), fence("f3")), {"j": 7}, 0)
    assert [one.id for one in registry.pending(JOB)] == ["f1", "f3"]
    assert [one.id for one in registry.of_job("j", 8)] == ["f2", "f3"]
    assert [one.id for one in registry.of_job("j")] == ["f1", "f2", "f3"]
    assert registry.applied("f2", "page")
    registry.order(by_id(fence("f3", uid=8)), {"j": 7}, 0)
    assert [one.id for one in registry.of_job("j", 7)] == ["f1"], "its user is known by now"
    other = FenceRegistry(["page"], SEC)
    other.restore(registry.save(), {"j": 8}, 0)
    assert other.all() == registry.all()
    assert [one.id for one in other.pending(JOB)] == ["f2", "f3"]
    assert not [one for one in registry.save()["fences"] if "uid" in one], "as the one before reads"


def test_who_says_whose_a_fence_is_is_believed_whatever_the_other_leaves_out():
    orders = Orders()
    orders.update("a", ComputeOrder(fences=[fence("f1", uid=7)]))
    orders.update("b", ComputeOrder(fences=[fence("f1")]))
    orders.update("c", ComputeOrder(fences=[fence("f2")]))
    assert orders.fences() == by_id(fence("f1", uid=7), fence("f2"))


def test_a_job_that_has_ended_needs_no_fence():
    registry = FenceRegistry(["store"], SEC)
    registry.order(by_id(fence("f1"), fence("f2")), {"j": 7}, 0)
    registry.applied("f1", "store")
    assert [one.id for one in registry.job_ended("j")] == ["f1"]
    assert registry.applied("f2", "store")


def test_what_is_late_is_told_once_with_who_it_waits_for():
    registry = FenceRegistry(["store"], 2 * SEC)
    registry.order(by_id(fence("f1")), {"j": 7}, SEC)
    assert registry.next_deadline_ns() == 3 * SEC
    assert registry.late(3 * SEC - 1) == []
    registry.applied("f1", "store")
    assert registry.late(3 * SEC) == [(fence("f1"), [JOB])]
    assert registry.late(9 * SEC) == []
    assert registry.next_deadline_ns() is None
    assert registry.applied("f1", JOB), "late is not never"


def test_an_id_is_of_one_fence():
    registry = FenceRegistry([], SEC)
    registry.order(by_id(fence("f1")), {}, 0)
    registry.check([fence("f1")])
    with pytest.raises(BadMessageError, match="fence f1 is of j, h1, x"):
        registry.check([fence("f1", host="h2")])


def test_a_fence_holds_on_when_nobody_orders_it_any_more():
    registry = FenceRegistry([], SEC)
    registry.order(by_id(fence("f")), {}, 0)
    registry.order({}, {}, 0)
    assert registry.acknowledged() == ["f"]
    assert registry.fences_run("h1", "j", "x") == fence("f")
    assert registry.fences_run("h1", "j", "y") is None
    for number in range(MOST_UNORDERED):
        registry.order(by_id(fence(f"g{number}")), {}, 0)
    registry.order({}, {}, 0)
    assert "f" not in registry.acknowledged(), "the oldest one goes"
    assert len(registry.acknowledged()) == MOST_UNORDERED


def test_so_many_fences_and_no_more():
    registry = FenceRegistry([], SEC)
    fences = [fence(f"f{number}") for number in range(MOST_FENCES)]
    registry.check(fences)
    registry.order(by_id(*fences), {}, 0)
    registry.check(fences)
    with pytest.raises(BadMessageError, match="1 new fences; 4096 of 4096 hold"):
        registry.check([*fences[1:], fence("more")])


def test_a_successor_applies_the_same_fences_anew():
    registry, other = FenceRegistry(["page"], SEC), FenceRegistry(["page"], SEC)
    registry.order(by_id(fence("f1"), fence("f2")), {}, 0)
    registry.applied("f1", "page")
    other.restore(registry.save(), {}, 0)
    assert other.all() == registry.all()
    assert other.acknowledged() == []
    items = ([1], [{"id": "x"}])
    users = {"fences": [fence("f").model_dump()], "users": {"f": "root"}}
    for bad in (None, [], {}, *({"fences": one} for one in items), users, users | {"users": 1}):
        with pytest.raises(BadMessageError):
            other.restore(bad, {}, 0)


class Flaky:
    """Fails a number of times, and remembers what it was given."""

    name = "page"

    def __init__(self, failures):
        self.failures, self.calls = failures, []

    async def apply(self, fences, new):
        self.calls.append(({one.id for one in fences}, {one.id for one in new}))
        if self.failures:
            self.failures -= 1
            raise FenceError("not now")


async def test_an_applier_is_asked_again_and_others_do_not_wait_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr("fabricd.escalate.fence_keeper.RETRY_S", (0.001, 0.001))
    flaky, store = Flaky(2), FenceStore(tmp_path / "fences.json")
    registry, told = FenceRegistry(["page", "store"], SEC), asyncio.Queue()
    keeper = FenceKeeper(registry, [flaky, store], told.put_nowait)
    task = asyncio.create_task(keeper.run())
    registry.order(by_id(fence("f1")), {}, 0)
    keeper.changed()
    assert await told.get() == fence("f1")
    registry.order(by_id(fence("f1"), fence("f2")), {}, 0)
    keeper.changed()
    assert await told.get() == fence("f2")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert flaky.calls == [({"f1"}, {"f1"})] * 3 + [({"f1", "f2"}, {"f2"})]
    assert '"id": "f2"' in (tmp_path / "fences.json").read_text()


# -- sockets


def diag(family, remote, uid):
    packed = socket.inet_pton(family, remote).ljust(16, b"\0")
    ident = struct.pack("!HH16s16sI8s", 1, 2, bytes(16), packed, 0, b"cookie..")
    return struct.pack("=BBBB", family, 1, 0, 0) + ident + struct.pack("=IIIII", 0, 0, 0, uid, 9)


def test_a_sockets_message_as_the_kernel_has_it():
    for family, remote, shown in (
        (socket.AF_INET, "10.0.0.2", "10.0.0.2"),
        (socket.AF_INET6, "fd00::2", "fd00::2"),
        (socket.AF_INET6, "::ffff:10.0.0.2", "10.0.0.2"),
    ):
        one = parse_socket(diag(family, remote, 1000))
        assert (one.family, one.remote, one.uid, len(one.id)) == (family, shown, 1000, 48)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_socket_or_refused(data):
    with contextlib.suppress(CounterError):
        parse_socket(data)


def test_an_address_that_two_hosts_have_ends_no_connection():
    """fe80::2 on rail 0 is h1 and on rail 1 is h2: a socket does not say which."""
    peers = parse_config(
        '[host]\nname = "h0"\n[[links]]\nnetdev = "a"\nrail = 0\n'
        '[[peers]]\nhost = "h1"\naddresses = [{ rail = 0, address = "fe80::2" }, '
        '{ rail = 1, address = "fe80::3" }, { rail = 2, address = "fe80::3" }]\n'
        '[[peers]]\nhost = "h2"\naddresses = [{ rail = 1, address = "fe80::2" }, '
        '{ rail = 0, address = "10.0.0.2" }]\n',
        "f.toml",
    ).peers
    assert addresses_of("h1", peers) == {"fe80::3"}
    assert addresses_of("h2", peers) == {"10.0.0.2"}
    assert addresses_of("h3", peers) == frozenset()


def test_only_the_jobs_users_connections_to_that_host_are_meant():
    sockets = [
        parse_socket(diag(socket.AF_INET, remote, uid))
        for remote, uid in (("10.0.0.2", 1), ("10.0.0.2", 2), ("10.0.0.3", 1))
    ]
    found = list(matching(sockets, [Target(frozenset({"10.0.0.2"}), 1)]))
    assert found == sockets[:1]
    assert list(matching(sockets, [])) == []
