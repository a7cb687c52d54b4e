"""The plugin over verbs on soft-RoCE: what is carried by RDMA, and what happens without it."""

import json

import pytest
from rdma_lab import clean, until

from lab.node import build_dir
from lab.vm.rdma import payload
from lab.vm.rdma.faults import RoceDrop, RxeRemoved

pytestmark = pytest.mark.nightly

VERBS = {"FABRIC_VERBS": "1"}
MTU = 1024
"""Bytes of payload in a packet of soft-RoCE at the lab's MTU."""
RDMA_CARRIES = 50
"""Packets a second of the guest on one rail: far above what validations and answers make."""
DEATH_S = 30.0
"""Until a peer's calls fail after a rank's death: within a second on a machine at rest. Far below
``FABRIC_DEADLINE`` and the life of the rank's forked child."""
BACK_NS = 60_000_000_000
"""Of the guest. Finding the device and connecting take 1 to 3 s, attempts that a busy machine made
fail are made again after up to 16 s."""


@pytest.fixture
def lab(namespaces):
    """The session's lab; the test fails when the kernel reported a fault of its own."""
    yield from clean(namespaces)


def sent(lab, host):
    """RDMA packets that each device of a host has sent; a removed one has no row."""
    shown = lab.run(host, ["rdma", "-j", "statistic", "show"]).check().out
    return {row["ifname"]: row["sent_pkts"] for row in json.loads(shown or "[]")}


def packets(lab, host):
    """RDMA packets that a host has sent, over all its devices."""
    return sum(sent(lab, host).values())


def rate(lab, host, seconds):
    """RDMA packets a second of the guest that ``rxe0`` of a host sends."""
    vm = lab.machines[0]
    began, before = vm.now_ns(), sent(lab, host).get("rxe0", 0)
    lab.run(host, ["sleep", str(seconds)]).check()
    return (sent(lab, host).get("rxe0", 0) - before) / ((vm.now_ns() - began) / 1e9)


def passed(results, size):
    """Whether all ranks ended well, with every byte right, and carried at least ``size`` bytes."""
    for rank in results:
        assert (rank.status, rank.errors) == (0, [])
        assert rank.end["corrupt_bytes"] == 0
        assert rank.end["bytes"] >= size
    return True


def test_two_hosts_move_verified_bytes_by_rdma(lab):
    before = packets(lab, 0)
    run = lab.perf(
        "p2p", "--size", "256K", "--iters", "12", "--pingpong", "8", hosts=[0, 1], env=VERBS
    )
    assert passed(run.wait(), 12 * 256 * 1024)
    assert packets(lab, 0) - before >= 12 * 256 * 1024 // MTU


def test_verbs_that_nobody_asked_for_leave_tcp(lab):
    before = packets(lab, 0)
    run = lab.perf("p2p", "--size", "64K", "--iters", "8", hosts=[0, 1])
    assert passed(run.wait(), 8 * 64 * 1024)
    assert packets(lab, 0) == before


def test_one_host_without_verbs_makes_the_pair_tcp(lab):
    before = [packets(lab, host) for host in (2, 3)]
    meet = f"tcp:{lab.topology.management4(2)}:{lab.next_port()}"
    jobs = []
    for rank, host in enumerate((2, 3)):
        env = {"NCCL_SOCKET_IFNAME": "rail", "FABRIC_VERBS": str(rank)}
        argv = [payload.PERF, "p2p", "--plugin", payload.PLUGIN, "--rank", str(rank)]
        argv += ["--world", "2", "--rendezvous", meet, "--size", "64K", "--iters", "8"]
        jobs.append(lab.popen(host, argv, timeout=240, env={**payload.LOADER, **env}))
    for job in jobs:
        job.wait().check()
    assert [packets(lab, host) for host in (2, 3)] == before


def test_ring_of_four_hosts(lab):
    run = lab.perf("ring", "--size", "1M", "--iters", "4", timeout=600, env=VERBS)
    assert passed(run.wait(), 1024 * 1024)


def test_rdma_that_breaks_while_ip_works_moves_the_load(lab):
    run = lab.perf("p2p", "--size", "64K", "--duration", "30", hosts=[0, 1], timeout=600, env=VERBS)
    with lab.inject(RoceDrop("h0:rail0")):
        assert passed(run.wait(), 64 * 1024)


@pytest.mark.parametrize(("host", "rails"), [(0, "=rail0"), (1, "rail")])
def test_a_device_that_is_removed_and_added_carries_again_in_a_busy_job(lab, host, rails):
    """The job never rests: its paths go back to RDMA beside the TCP that took over."""
    words = ["--size", "256K", "--duration", "600", "--pingpong", "0", "--interval-ms", "50"]
    env = {**VERBS, "NCCL_SOCKET_IFNAME": rails}
    job = lab.perf("p2p", *words, hosts=[0, 1], env=env, timeout=500)
    try:
        until(lambda: rate(lab, 0, 1.0) >= RDMA_CARRIES, "RDMA carries")
        with lab.inject(RxeRemoved(f"h{host}:rail0")):
            lab.run(0, ["sleep", "4"]).check()
        vm = lab.machines[0]
        added = vm.now_ns()
        while rate(lab, 0, 0.5) < RDMA_CARRIES:
            assert vm.now_ns() - added < BACK_NS, "RDMA is not back on the rail"
        print(f"h{host}, {rails}: back after {(vm.now_ns() - added) / 1e9:.1f} s")
        job.interrupt()
        assert passed(job.wait(), 256 * 1024)
    finally:
        job.kill()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_while_its_forked_child_lives_ends_its_peers_calls(lab, victim):
    """The child has no copy of the rank's connections, nor of its devices."""
    (vm,) = lab.machines
    library = build_dir() / "nccl_plugin" / "libfabric-forked-child.so"
    payload.put(vm, library)
    pid, when = f"/run/forked.{victim}", f"/run/fork.{victim}"
    doomed = {"LD_PRELOAD": f"{payload.ROOT}/{library.name}", "FABRIC_FORK_PID": pid,
              "FABRIC_FORK_WHEN": when}  # fmt: skip
    meet = f"tcp:{lab.topology.management4(0)}:{lab.next_port()}"
    jobs = []
    for rank in range(2):
        argv = [payload.PERF, "p2p", "--plugin", payload.PLUGIN, "--rank", str(rank)]
        argv += ["--world", "2", "--rendezvous", meet, "--size", "256K", "--duration", "600"]
        env = {**payload.LOADER, **VERBS, "NCCL_SOCKET_IFNAME": "rail"}
        env |= doomed if rank == victim else {}
        jobs.append(lab.popen(rank, argv, timeout=400, env=env))
    try:
        until(lambda: rate(lab, 0, 0.5) >= RDMA_CARRIES, "RDMA carries")
        vm.run("touch", when).check()
        death, end = jobs[victim].wait(), jobs[1 - victim].wait()
        took = (end.ended_ns - death.ended_ns) / 1e9
        print(f"rank {1 - victim}: rc {end.rc} {took:.2f} s after the death of rank {victim}")
        child = vm.run("cat", pid).check().out
        vm.run("test", "-d", f"/proc/{child}").check()  # it lived all the time
        assert end.rc != 0
        assert took < DEATH_S
    finally:
        for job in jobs:
            job.kill()
        vm.run("sh", "-c", f"kill -9 $(cat {pid})")
