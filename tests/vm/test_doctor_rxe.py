"""`fabricctl doctor` on real soft-RoCE: the kernel's own sysfs, device nodes, libibverbs, nft."""

import json

import pytest

PYTHON = "/opt/fabricd/bin/python3"
LIMIT_S = 600  # some twenty starts of Python, each 20 times longer under emulation

# Prints what the doctor says as it is, then with UDP 4791 dropped and
# without a device node.
SCRIPT = """
import json, os, subprocess
from pathlib import Path
from fabricd.doctor.checks import run
from fabricd.doctor.gather import GatherOptions, gather
from fabricd.doctor.machine import ThisMachine
from fabricd.doctor.tree import Tree

def look():
    facts = gather(Tree(), ThisMachine(), GatherOptions(Path("/etc/fabricd/none.toml")))
    report = run(facts)
    return facts, {
        "findings": [[x.check, x.severity.name, x.subject, x.seen] for x in report.findings],
        "unexamined": dict(report.unexamined),
    }

facts, plain = look()
plain["ports"] = [
    [str(p), p.link_layer, p.state, list(p.netdevs), [str(g.address) for g in p.usable_gids],
     p.active_mtu, p.max_mtu] for p in facts.ports
]
plain["drivers"] = [[d.name, d.driver, d.pci] for d in facts.verbs]
plain["nodes"] = [[n.device, n.problem] for n in facts.nodes]
plain["libibverbs"] = facts.libibverbs
plain["rails"] = list(facts.rails)
plain["plugin"] = [facts.plugin.problem, list(facts.plugin.tables)]
rules = '''
table inet doctor {
  chain in {
    type filter hook input priority 0;
    udp dport 4791 drop;
  }
}
'''
subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
node = Path("/dev/infiniband/uverbs0")
node.rename("/dev/infiniband/hidden")
try:
    _, broken = look()
finally:
    Path("/dev/infiniband/hidden").rename(node)
    subprocess.run(["nft", "delete", "table", "inet", "doctor"], check=True)
print(json.dumps([plain, broken]))
"""


@pytest.mark.nightly
def test_the_doctor_reads_what_a_real_kernel_writes(rdma):
    plain, broken = json.loads(
        rdma.alpha.run(PYTHON, "-", stdin=SCRIPT, timeout=LIMIT_S).check().out
    )
    assert plain["drivers"] == [["rxe0", "rdma_rxe", ""], ["rxe1", "rdma_rxe", ""]]
    assert [port[:4] for port in plain["ports"]] == [
        [f"rxe{n}/1", "Ethernet", "ACTIVE", [f"rail{n}"]] for n in (0, 1)
    ]
    assert [len(port[4]) for port in plain["ports"]] == [1, 1], "the IPv4 address, not fe80"
    assert [port[5:] for port in plain["ports"]] == [[1024, 4096]] * 2, "as libibverbs says"
    assert plain["nodes"] == [["rxe0", ""], ["rxe1", ""]]
    assert plain["libibverbs"] == "libibverbs.so.1"
    assert plain["rails"] == ["rail0", "rail1"]
    assert plain["plugin"] == ["", [8, 9, 10, 11, 12]]
    assert [f for f in plain["findings"] if f[1] == "CRITICAL"] == []
    for what in ("IP addresses", "firewall rules", "libibverbs", "RLIMIT_MEMLOCK of this shell"):
        assert what not in plain["unexamined"], plain["unexamined"]
    critical = [(check, subject) for check, severity, subject, _ in broken["findings"]
                if severity == "CRITICAL"]  # fmt: skip
    assert critical == [("firewall", "host")], "the other device can still be opened"
    spare = [seen for check, _, _, seen in broken["findings"] if check == "uverbs"]
    assert spare == ["1 of 2 verbs devices cannot be opened here, and no rail needs them."]
