"""RDMA probes on soft-RoCE: heard beside UDP probes, and each tells of its own transport alone."""

import json
from pathlib import Path

import pytest
from rdma_lab import until

from lab.node import build_dir
from lab.vm.rdma import payload
from lab.vm.rdma.faults import IpDrop, RoceDrop
from lab.vm.rdma.payload import ROOT

pytestmark = pytest.mark.nightly  # three minutes under emulation

REPO = Path(__file__).resolve().parents[2]
GUEST = Path(__file__).parent / "guest"
KEY = "".join(f"{i:02x}" for i in range(32))
MISSES = 3


@pytest.fixture(scope="module")
def probers(namespaces):
    """Probers on hosts 0 and 1, and the looks at their rings."""
    vm = namespaces.machines[0]
    payload.put(vm, build_dir() / "prober" / "fabric-prober")
    for path in [REPO / "fabricd/__init__.py", *(REPO / "fabricd/probes").glob("*.py")]:
        vm.write(f"{ROOT}/py/{path.relative_to(REPO)}", path.read_bytes(), 0o644)
    vm.write(f"{ROOT}/probe_rdma.py", (GUEST / "probe_rdma.py").read_bytes(), 0o755)
    vm.write(f"{ROOT}/probe.key", KEY.encode(), 0o600)
    jobs, looks = [], []
    for host, peer in ((0, 1), (1, 0)):
        run = f"/run/probes{host}"
        namespaces.run(host, ["mkdir", "-p", run]).check()
        argv = [f"{ROOT}/fabric-prober", "--run-dir", run, "--key-file", f"{ROOT}/probe.key"]
        jobs.append(namespaces.popen(host, argv, timeout=1200))
        argv = ["python3", f"{ROOT}/probe_rdma.py", run, str(host), str(peer), "1200"]
        out = f"{run}/looks"
        argv = ["sh", "-c", f"exec {' '.join(argv)} >{out} 2>&1"]
        env = {"PYTHONPATH": f"{ROOT}/py"}
        looks.append(out)
        jobs.append(namespaces.popen(host, argv, timeout=1200, env=env))

    def look(host):
        """The newest look at a host's ring; {}: there is none yet."""
        text = namespaces.run(host, ["tail", "-n1", looks[host]]).out
        try:
            return json.loads(text)
        except ValueError:
            return {}

    yield look
    for job in jobs:
        job.kill()


def path(look, link, *, rdma):
    """The row of a link's path; None: there is none."""
    links = 2 * rdma + link
    return next((p for p in look.get("paths", ()) if p["link"] == links), None)


def heard(look, link, *, rdma):
    row = path(look, link, rdma=rdma)
    return bool(row and row["established"] and row["received"] and not row["rx_missed"])


def until_heard(probers, host, rail, *, rdma):
    until(lambda: heard(probers(host), rail, rdma=rdma), f"h{host} rail{rail} rdma={rdma}")


@pytest.mark.parametrize("host", [0, 1])
@pytest.mark.parametrize("rdma", [False, True])
def test_both_transports_are_heard_and_timed(probers, host, rdma):
    for rail in (0, 1):
        until_heard(probers, host, rail, rdma=rdma)
    until(lambda: path(probers(host), 0, rdma=rdma)["rtt_ns"], "a round trip")


@pytest.mark.parametrize(("fault", "rdma"), [(RoceDrop, True), (IpDrop, False)])
def test_what_is_broken_is_told_from_what_is_not(namespaces, probers, fault, rdma):
    until_heard(probers, 0, 0, rdma=rdma)
    with namespaces.inject(fault("h1:rail0")):
        until(lambda: path(probers(0), 0, rdma=rdma)["rx_missed"] >= MISSES, f"misses: {rdma}")
        assert heard(probers(0), 0, rdma=not rdma)
        assert heard(probers(0), 1, rdma=rdma)
    until_heard(probers, 0, 0, rdma=rdma)
