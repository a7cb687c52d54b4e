"""What the tests of RDMA labs share."""

import time

PATIENCE_S = 240


def until(condition, what):
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.1)
    return value


def clean(lab):
    """A fixture's body: the lab, and afterwards no report of a kernel fault in it."""
    lab.kernel_faults()
    yield lab
    assert lab.in_force == []
    assert lab.kernel_faults() == []


def ping(lab, source, target, rail):
    """Whether an ICMP echo comes back over a rail."""
    words = ["busybox", "ping", "-c2", "-W2", "-I", f"rail{rail}"]
    return lab.run(source, [*words, lab.topology.address4(target, rail)]).rc == 0
