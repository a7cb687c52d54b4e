"""Every fault of the RDMA lab under fabric-perf with the plugin: no error and no wrong byte.

One rail of two has the fault while all ranks exchange verified data; whatever transport the
plugin takes, the other rail carries on.
"""

import pytest
from rdma_lab import clean, until

from lab.vm.rdma.cases import CASES, HOSTS
from lab.vm.rdma.perf import longest_stall_ns, moved_bytes

pytestmark = pytest.mark.nightly
AFTER_S = 3
"""Of traffic when the fault is over: the rail has come back, or is known to be down."""


@pytest.fixture
def lab(namespaces):
    """The session's lab; the test fails when the kernel reported a fault of its own."""
    yield from clean(namespaces)


@pytest.mark.parametrize("mode", HOSTS)
@pytest.mark.parametrize("case", CASES)
def test_no_error_and_no_wrong_byte(lab, case, mode):
    words = ["--size", "256K", "--channels", "2", "--duration", "600", "--pingpong", "0"]
    words += ["--interval-ms", "20"]
    job = lab.perf(mode, *words, hosts=HOSTS[mode], timeout=400, env={"FABRIC_VERBS": "1"})
    try:
        until(lambda: moved_bytes(job.rows(0)) > 0, "data moves")
        with lab.inject(CASES[case].make()):
            lab.fabric.run(["sleep", str(CASES[case].seconds)]).check()
        lab.fabric.run(["sleep", str(AFTER_S)]).check()
        before = moved_bytes(job.rows(0))
        until(lambda: moved_bytes(job.rows(0)) > before, "data moves after the fault")
        job.interrupt()
        results = job.wait()
        print(f"{case}, {mode}: stall {longest_stall_ns(job.rows(0)) / 1e6:.0f} ms")
        for rank in results:
            assert (rank.status, rank.errors) == (0, [])
            assert rank.end["corrupt_bytes"] == 0
            assert rank.end["bytes"] > 0
    finally:
        job.kill()
