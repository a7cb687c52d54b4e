"""Two machines with daemon and prober: broken RDMA takes RDMA's weight alone, broken IP that of IP.

Detection counts in packets and the page follows at once; how long that takes here is printed, and
says more of the emulation than of fabricd.
"""

from pathlib import Path

import pytest
from installed import KEY, ask, until

from lab.vm import pair

GUEST = Path(__file__).parent / "guest"
PATIENCE_S = 240
# Apart from the units that other tests start on these machines.
RUN = "/run/rdma-probes"
SOCKET = f"{RUN}/ctl.sock"
CONFIG = """[host]
name = "{own}"
[paths]
run_dir = "/run/rdma-probes"
state_dir = "/run/rdma-probes/state"
[metrics]
listen = "127.0.0.1:9919"
[probe]
port = 9311
key_file = "/run/rdma-probes/probe.key"
[[links]]
netdev = "rail0"
rail = 0
[[links]]
netdev = "rail1"
rail = 1
[[peers]]
host = "{peer}"
addresses = [{{ rail = 0, address = "{a}" }}, {{ rail = 1, address = "{b}" }}]
"""
DROPS = {
    "roce": "udp dport 4791 drop",
    "ip": "udp dport 4791 accept; meta l4proto { icmp, tcp, udp } drop",
}


@pytest.fixture(scope="module")
def steered(rdma):
    """Daemon and prober on both machines, in mode steer; both transports are heard."""
    jobs = []
    for host, vm in enumerate((rdma.alpha, rdma.beta)):
        peer = 1 - host
        text = CONFIG.format(
            own=pair.NAMES[host], peer=pair.NAMES[peer],
            a=pair.address(peer, 0), b=pair.address(peer, 1),
        )  # fmt: skip
        vm.run("mkdir", "-p", f"{RUN}/state").check()
        vm.write(f"{RUN}/config.toml", text.encode(), 0o644)
        vm.write(f"{RUN}/probe.key", KEY.encode(), 0o600)
        vm.write("/run/steered.py", (GUEST / "steered.py").read_bytes(), 0o755)
        programs = (
            ["fabric-prober", "--run-dir", RUN, "--key-file", f"{RUN}/probe.key"],
            ["fabricd", "--config", f"{RUN}/config.toml"],
        )
        for name, *words in programs:
            jobs.append(vm.begin(f"/opt/fabricd/bin/{name}", *words, timeout=1800))
    for vm in (rdma.alpha, rdma.beta):
        until(lambda vm=vm: ask(vm, "promote", socket=SOCKET, mode="steer"), PATIENCE_S, "promoted")
        until(lambda vm=vm: heard(vm), PATIENCE_S, "RDMA is up on both rails")
    yield rdma
    for job in jobs:
        job.kill()


def heard(vm):
    paths = [path for link in ask(vm, "links", socket=SOCKET) or () for path in link["paths"]]
    return len(paths) >= 2 and all(path["rdma"] == "up" for path in paths)


@pytest.mark.nightly
@pytest.mark.parametrize(("drop", "of_ip", "of_rdma"), [("roce", 1000, 0), ("ip", 0, 1000)])
def test_one_transport_is_broken_and_steered_alone(steered, drop, of_ip, of_rdma):
    vm, remote = steered.alpha, pair.address(1, 0)
    until(lambda: heard(vm), PATIENCE_S, "heard before")
    table = f"""table netdev fault {{ chain rail0 {{
        type filter hook ingress device "rail0" priority 0; policy accept; {DROPS[drop]}
    }} }}"""
    vm.write("/run/fault.nft", table.encode(), 0o644)
    argv = ["/run/steered.py", "rail0", remote, str(of_ip), str(of_rdma)]
    argv += ["nft", "-f", "/run/fault.nft"]
    took = float(vm.run(*argv, timeout=PATIENCE_S).check().out)
    print(f"{drop}: steered after {took:.2f} s of the guest's clock")
    other = ["/run/steered.py", "rail1", pair.address(1, 1), "1000", "1000"]
    vm.run(*other, timeout=PATIENCE_S).check()
    vm.run("nft", "delete", "table", "netdev", "fault").check()
    argv = ["/run/steered.py", "rail0", remote, "1000", "1000"]
    vm.run(*argv, timeout=PATIENCE_S).check()
