"""Daemon and prober on machines of a test, apart from the units that other tests start there.

Probes are few, since an emulated processor has more to do.
"""

from pathlib import Path

from installed import KEY, ask

from lab.vm import pair
from lab.vm.rdma.lab import held_hooks

GUEST = Path(__file__).parent / "guest"
RUN = "/run/rdma-probes"
SOCKET = f"{RUN}/ctl.sock"
RAILS = 2
CONFIG = """[host]
name = "{own}"
[paths]
run_dir = "/run/rdma-probes"
state_dir = "/run/rdma-probes/state"
[metrics]
listen = "127.0.0.1:9919"
[probe]
port = 9311
link_interval_ms = 50
clock_train_hz = 10
cross_rail_peers = 0
key_file = "/run/rdma-probes/probe.key"
[[links]]
netdev = "rail0"
rail = 0
[[links]]
netdev = "rail1"
rail = 1
"""
PEER = """[[peers]]
host = "{peer}"
addresses = [{{ rail = 0, address = "{a}" }}, {{ rail = 1, address = "{b}" }}]
"""


def add_rxe(vm, rails):
    """A soft-RoCE device ``rxe<r>`` on each rail."""
    vm.run("modprobe", "-a", "rdma_rxe", "nf_tables").check()
    vm.run("sh", "-c", held_hooks()).check()
    for rail in range(rails):
        argv = ["rdma", "link", "add", f"rxe{rail}", "type", "rxe", "netdev", f"rail{rail}"]
        vm.run(*argv).check()


def start(vm, host, names):
    """Both programs of the host of that number among `names`; how to end them."""
    text = CONFIG.format(own=names[host]) + "".join(
        PEER.format(peer=name, a=pair.address(at, 0), b=pair.address(at, 1))
        for at, name in enumerate(names)
        if at != host
    )
    vm.run("mkdir", "-p", f"{RUN}/state").check()
    vm.write(f"{RUN}/config.toml", text.encode(), 0o644)
    vm.write(f"{RUN}/probe.key", KEY.encode(), 0o600)
    programs = (
        ["fabric-prober", "--run-dir", RUN, "--key-file", f"{RUN}/probe.key"],
        ["fabricd", "--config", f"{RUN}/config.toml"],
    )
    return [vm.begin(f"/opt/fabricd/bin/{name}", *words, timeout=1800) for name, *words in programs]


def paths(vm):
    """All paths of the host, as `fabricctl links` has them; none while the daemon is silent."""
    return [path for link in ask(vm, "links", socket=SOCKET) or () for path in link["paths"]]


def is_up(path):
    return path["rdma"] == path["state"] == "up"


def heard(vm, peers=1):
    """Every path to so many peers is up, over IP and over RDMA."""
    found = paths(vm)
    return len(found) == peers * RAILS and all(map(is_up, found))
