"""Every fault of the RDMA lab under fabric-perf with the plugin: no error and no wrong byte.

One rail of two has the fault while all ranks exchange verified data; whatever transport the
plugin takes, the other rail carries on.
"""

import pytest
from rdma_lab import clean, until

from lab.vm.rdma.faults import (
    AckDrop,
    AddressRemoved,
    AdminDown,
    BlackHole,
    Carrier,
    Flap,
    Frozen,
    GidMoved,
    IpDrop,
    LeafDown,
    Loss,
    Mtu,
    Netem,
    RoceDrop,
    RxeRemoved,
)
from lab.vm.rdma.perf import longest_stall_ns

pytestmark = pytest.mark.nightly
HOSTS = {"p2p": [0, 1], "ring": [0, 1, 2, 3]}
AFTER_S = 3
"""Of traffic when the fault is over: the rail has come back, or is known to be down."""
CASES = {
    "carrier": (lambda: Carrier("h1:rail0"), 2),
    "admin": (lambda: AdminDown("h1:rail0"), 2),
    "both ends": (lambda: LeafDown("leaf0"), 2),
    "flap of 37 ms": (lambda: Flap("h1:rail0", down_ms=37, up_ms=200, count=3), 0),
    "flap of 300 ms": (lambda: Flap("h1:rail0", down_ms=300, up_ms=300, count=3), 0),
    "black hole": (lambda: BlackHole("h1:rail0"), 2),
    "black hole, one way": (lambda: BlackHole("h1:rail0", "rx"), 2),
    "RDMA broken, IP fine": (lambda: RoceDrop("h1:rail0"), 2),
    "IP broken, RDMA fine": (lambda: IpDrop("h1:rail0"), 2),
    "ACKs dropped": (lambda: AckDrop("h1:rail0"), 2),
    "loss": (lambda: Loss("h1:rail0", 5), 2),
    "delay": (lambda: Netem("h1:rail0", "delay 20ms 5ms"), 2),
    "MTU": (lambda: Mtu("h1:rail0", 640), 2),
    "GID moved": (lambda: GidMoved("h1:rail0"), 2),
    "address removed": (lambda: AddressRemoved("h1:rail0"), 2),
    "device removed": (lambda: RxeRemoved("h1:rail0"), 2),
    "process stopped": (lambda: Frozen("h1"), 5),
    "all rails": (lambda: Carrier("h1"), 3),
}


@pytest.fixture
def lab(namespaces):
    """The session's lab; the test fails when the kernel reported a fault of its own."""
    yield from clean(namespaces)


def moved(job, rank):
    """Bytes of the collective that a rank has done."""
    rows = [row["bytes"] for row in job.rows(rank) if row["type"] == "sample"]
    return rows[-1] if rows else 0


@pytest.mark.parametrize("mode", HOSTS)
@pytest.mark.parametrize("case", CASES)
def test_no_error_and_no_wrong_byte(lab, case, mode):
    make, seconds = CASES[case]
    words = ["--size", "256K", "--channels", "2", "--duration", "600", "--pingpong", "0"]
    words += ["--interval-ms", "20"]
    job = lab.perf(mode, *words, hosts=HOSTS[mode], timeout=400, env={"FABRIC_VERBS": "1"})
    try:
        until(lambda: moved(job, 0) > 0, "data moves")
        with lab.inject(make()):
            lab.fabric.run(["sleep", str(seconds)]).check()
        lab.fabric.run(["sleep", str(AFTER_S)]).check()
        before = moved(job, 0)
        until(lambda: moved(job, 0) > before, "data moves after the fault")
        job.interrupt()
        results = job.wait()
        print(f"{case}, {mode}: stall {longest_stall_ns(job.rows(0)) / 1e6:.0f} ms")
        for rank in results:
            assert (rank.status, rank.errors) == (0, [])
            assert rank.end["corrupt_bytes"] == 0
            assert rank.end["bytes"] > 0
    finally:
        job.kill()
