"""Two machines with daemon, prober and a job: what breaks RDMA leaves IP's weight, and the reverse.

Fabric time goes on over RDMA where IP is broken.

Detection counts in packets and the page follows at once; how long that takes here is printed.
"""

import contextlib
import json

import pytest
import watched
from installed import ask, until
from watched import RUN, SOCKET, heard

from lab.node import build_dir
from lab.vm import pair
from lab.vm.rdma import payload
from lab.vm.rdma.perf import GuestPerf, moved_bytes
from lab.vm.rdma.place import Place

PATIENCE_S = 240
RENDEZVOUS = f"tcp:{pair.address(0, 1)}:18777"
SECONDS = 2
"""Of the guest, in which packets are counted."""
WAY_NS = 20_000_000
"""Two lines between the same raw clocks are apart by less; a packet takes 1 to 3 ms."""
IDLE, BUSY = 0.1, 0.3
"""Packets of rail 0 over those of rail 1: at most, where its RDMA is broken, and at least, where it
carries. Equal rails have 1; probes alone, 0.01."""
DROPS = {
    "roce": "udp dport 4791 drop",
    "ip": "udp dport 4791 accept; meta l4proto { icmp, tcp, udp } drop",
}


@pytest.fixture(scope="module")
def steered(rdma):
    """Daemon and prober on both machines, in mode steer; both transports are heard."""
    jobs = []
    for host, vm in enumerate((rdma.alpha, rdma.beta)):
        vm.write("/run/steered.py", (watched.GUEST / "steered.py").read_bytes(), 0o755)
        jobs += watched.start(vm, host, pair.NAMES)
    for vm in (rdma.alpha, rdma.beta):
        until(lambda vm=vm: ask(vm, "promote", socket=SOCKET, mode="steer"), PATIENCE_S, "promoted")
        until(lambda vm=vm: heard(vm), PATIENCE_S, "RDMA is up on both rails")
    yield rdma
    for job in jobs:
        job.kill()


@pytest.fixture(scope="module")
def job(steered):
    """Verified messages from alpha to beta over verbs, which obey the daemons' steer pages."""
    places = [Place(steered.alpha), Place(steered.beta)]
    for place in places:
        payload.push(place.vm, build_dir())
    # Little: a path that the emulated processor starves dies, and is not dialled without IP.
    words = ["--size", "32K", "--duration", "1800", "--pingpong", "0", "--interval-ms", "100"]
    env = {"FABRIC_VERBS": "1", "FABRIC_RUN_DIR": RUN}
    ranks = GuestPerf(
        places, "p2p", words, f"{RUN}/perf", RENDEZVOUS, env, payload.PLUGIN, 1800,
    )  # fmt: skip
    yield ranks
    ranks.kill()


@contextlib.contextmanager
def faulty(vm, rails, rule):
    """/run/fault.nft is a table that drops what comes in; it is gone afterwards, loaded or not."""
    chains = "".join(
        f'chain {rail} {{ type filter hook ingress device "{rail}" priority 0; {rule}\n}}\n'
        for rail in rails
    )
    vm.write("/run/fault.nft", f"table netdev fault {{\n{chains}}}\n".encode(), 0o644)
    try:
        yield
    finally:
        # Other tests use these machines; `destroy` of nft is newer.
        gone = "nft delete table netdev fault 2>/dev/null; ! nft list tables | grep fault"
        vm.run("sh", "-c", gone).check()


def sent(vm):
    """RDMA packets that each device has sent."""
    shown = vm.run("rdma", "-j", "statistic", "show").check().out
    return {row["ifname"]: row["sent_pkts"] for row in json.loads(shown)}


def share(vm):
    """RDMA packets that rail 0 sends, over those of rail 1, for `SECONDS`."""
    before = sent(vm)
    vm.run("sleep", str(SECONDS)).check()
    rails = [after - before[device] for device, after in sorted(sent(vm).items())]
    return rails[0] / max(rails[1], 1)


def steer(vm, rail, of_ip, of_rdma, *command):
    """Seconds of the guest that the command took, and from its start until the page had these."""
    argv = ["/run/steered.py", f"rail{rail}", pair.address(1, rail), str(of_ip), str(of_rdma)]
    return [float(word) for word in vm.run(*argv, *command, timeout=PATIENCE_S).check().out.split()]


@pytest.mark.nightly
@pytest.mark.parametrize(("drop", "of_ip", "of_rdma"), [("roce", 1000, 0), ("ip", 0, 1000)])
def test_one_transport_is_broken_and_steered_alone(steered, job, drop, of_ip, of_rdma):
    vm = steered.alpha
    until(lambda: heard(vm), PATIENCE_S, "heard before")
    until(lambda: share(vm) > BUSY, PATIENCE_S, "RDMA carries the job on both rails")
    with faulty(vm, ["rail0"], DROPS[drop]):
        fault, took = steer(vm, 0, of_ip, of_rdma, "nft", "-f", "/run/fault.nft")
        print(f"{drop}: steered within {took:.2f} s of the guest's, {fault:.2f} of them nft's")
        steer(vm, 1, 1000, 1000)
        before = moved_bytes(job.rows(0))
        if of_rdma:
            until(lambda: share(vm) > BUSY, PATIENCE_S, "RDMA carries on")
        else:
            until(lambda: share(vm) < IDLE, PATIENCE_S, "nothing of the job on rail 0's RDMA")
        until(lambda: moved_bytes(job.rows(0)) > before, PATIENCE_S, "the job goes on")
    steer(vm, 0, 1000, 1000)
    until(lambda: share(vm) > BUSY, PATIENCE_S, "RDMA carries on both rails again")


@pytest.mark.nightly
def test_the_job_has_no_error_and_no_wrong_byte(job):
    job.interrupt()
    for rank in job.wait():
        assert (rank.status, rank.errors) == (0, [])
        assert rank.end["corrupt_bytes"] == 0
        assert rank.end["bytes"] > 0


KEPT = ("reference", "takeovers", "lost")
"""Of the clock service's document: what no change of transport changes."""


@pytest.fixture
def clocks(steered):
    """fabric-clock on both machines."""
    jobs = [
        vm.begin("/opt/fabricd/bin/fabric-clock", "--config", f"{RUN}/config.toml", timeout=1200)
        for vm in (steered.alpha, steered.beta)
    ]
    yield steered
    for job in jobs:
        job.kill()


def told(vm):
    """The clock service's document; nothing before it wrote one."""
    text = vm.run("cat", f"{RUN}/clock.json").out
    return json.loads(text) if text else {"state": "unsynced", "paths": []}


def timed(vm, *, rdma):
    """Offsets of the paths that have one, over RDMA or over UDP."""
    rows = [row for row in told(vm)["paths"] if row["rdma"] == rdma]
    return [row["offset_ns"] for row in rows if row["offset_ns"] is not None]


def locked(vm):
    """The document of a clock service that is locked, else None.

    Emulated machines stand still for a second now and then: then one of them is not, for a moment.
    """
    found = told(vm)
    return found if found["state"] == "locked" else None


@pytest.mark.nightly
def test_fabric_time_goes_on_over_rdma_where_ip_is_broken(clocks):
    vm, both = clocks.alpha, (clocks.alpha, clocks.beta)
    until(lambda: heard(vm), PATIENCE_S, "heard before")
    udp = until(lambda: timed(vm, rdma=False), PATIENCE_S, "timed over UDP")
    until(lambda: timed(vm, rdma=True) == [], PATIENCE_S, "nothing over RDMA")
    before = [until(lambda vm=vm: locked(vm), PATIENCE_S, "locked") for vm in both]
    with faulty(vm, ["rail0", "rail1"], DROPS["ip"]):
        vm.run("nft", "-f", "/run/fault.nft").check()
        rdma = until(lambda: timed(vm, rdma=True), PATIENCE_S, "timed over RDMA")
        print(f"offset over UDP {udp[0] / 1e6:.3f} ms, over RDMA {rdma[0] / 1e6:.3f} ms")
        assert rdma[0] == pytest.approx(udp[0], abs=WAY_NS)
        for each, was in zip(both, before, strict=True):
            after = until(lambda vm=each: locked(vm), PATIENCE_S, "locked over RDMA")
            assert [after[name] for name in KEPT] == [was[name] for name in KEPT]
    until(lambda: not [row for row in told(vm)["paths"] if row["rdma"]], PATIENCE_S, "back on UDP")
