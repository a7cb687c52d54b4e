"""Each host gets the fences and orders of all jobs in which it has a part, and only changes."""

from compute.decide.host_orders import HostOrders
from fabric_train.messages.documents import JobOrder
from telemetry.messages.documents import Fence

RUN = JobOrder("i", "running")
WAIT = JobOrder("i", "waiting")


def fence(host, job="j"):
    return Fence(id=f"{job}/{host}/i", job=job, host=host, incarnation="i")


def test_a_host_has_the_orders_of_all_its_jobs_and_hears_of_changes_alone():
    orders = HostOrders()
    orders.update("j", {"a": RUN, "b": RUN}, ["a", "b"])
    orders.update("k", {"b": WAIT}, ["b"])
    assert orders.changed([]) == [("a", [], {"j": RUN}), ("b", [], {"j": RUN, "k": WAIT})]
    orders.update("j", {"a": RUN, "b": RUN}, ["a", "b"])
    assert orders.changed([]) == []
    orders.update("j", {"b": RUN}, ["b"])
    assert orders.changed([]) == [("a", [], {})]
    orders.remove("k")
    assert orders.changed([]) == [("b", [], {"j": RUN})]


def test_only_who_knows_whose_fences_are_is_told():
    """The version before refuses an order with a user in it."""
    orders, one = HostOrders(), fence("x").model_copy(update={"uid": 7})
    assert orders.reads_users("a", yes=True)
    assert not orders.reads_users("a", yes=True)
    assert not orders.reads_users("b", yes=False)
    orders.update("j", {}, ["a", "b"])
    fences = [(["a", "b"], [one])]
    assert orders.changed(fences) == [("a", [one], {}), ("b", [fence("x")], {})]
    assert orders.reads_users("b", yes=True), "it has been upgraded"
    assert orders.changed(fences) == [("b", [one], {})]
    assert "uid" not in fence("x").model_dump()


def test_all_hosts_of_a_job_and_who_is_fenced_get_its_fences():
    orders, one, other = HostOrders(), fence("x"), fence("b", "k")
    orders.update("j", {"a": RUN}, ["a", "b", "x"])
    fences = [(["a", "b"], [one]), (["b", "c"], [other])]
    assert orders.changed(fences) == [
        ("a", [one], {"j": RUN}), ("b", [one, other], {}), ("x", [one], {}),
    ]  # fmt: skip
    orders.update("k", {}, ["b", "c"])
    assert orders.changed(fences) == [("c", [other], {})], "c has a part in k alone"
