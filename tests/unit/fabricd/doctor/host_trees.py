"""Builds a host's /sys, /proc and /dev in a directory, of a listing in ``hosts/``.

Plain lines are ``PATH = TEXT`` and ``PATH -> TARGET``; ``@pci``, ``@verbs``, ``@port``, ``@gid``,
``@empty``, ``@net`` and ``@uverbs`` write what the kernel's drivers make of these objects.
"""

import errno
import json
import os
import struct
from pathlib import Path

from fabricd.doctor import process_scan
from fabricd.doctor.checks import run
from fabricd.doctor.facts import EMPTY_GID
from fabricd.doctor.gather import GatherOptions, gather
from fabricd.doctor.machine import ToolError
from fabricd.doctor.tree import Tree

HOSTS = Path(__file__).parent / "hosts"
PLUGIN = b"\0fabricd libnccl-net-fabric 0.1.0, wire 1 to 3, tcp verbs\0\0GLIBC_2.17\0GLIBC_2.4\0"
ADDRESSES = {"rail0": "10.0.0.1/24", "rail1": "10.1.0.1/24", "eth0": "192.168.7.5/24"}


class FailingTree(Tree):
    """A tree of which some files answer with an errno, as sysfs does."""

    def __init__(self, root, failing):
        super().__init__(root)
        self.failing = failing

    def data(self, name, limit=1 << 18):
        if code := self.failing.get(name.lstrip("/")):
            raise OSError(code, os.strerror(code), name)
        return super().data(name, limit)


class Answers:
    """A machine's recorded answers: tools by their words, device nodes by their names."""

    def __init__(self):
        self.tools = {}
        self.nodes = {}
        self.children = {
            "fabricd.doctor.verbs_query": verbs_answer(),
            "fabricd.doctor.plugin_load": {
                "error": "", "tables": [8, 9, 10, 11, 12], "name": "FABRIC",
            },
        }  # fmt: skip

    def run(self, argv):
        answer = self.tools.get(" ".join(argv))
        if answer is None:
            raise ToolError(f"{argv[0]} is not installed")
        return answer

    def open_node(self, path):
        return self.nodes.get(path.name, 0)

    def child(self, module, *args):
        if module == "fabricd.doctor.process_scan":
            return process_scan.scan(Tree(Path(args[0])), [int(pid) for pid in args[1:]])
        answer = self.children[module]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Host:
    """A host's files in ``root``, and its machine's answers."""

    def __init__(self, root, listing=None):
        self.root = root
        self.failing = {}
        self.machine = Answers()
        self.environment = {}
        self.pids = ()
        self._verbs = {}
        root.mkdir(parents=True, exist_ok=True)
        if listing:
            self.load((HOSTS / f"{listing}.txt").read_text())
        self.addresses(ADDRESSES)
        self.machine.tools["ip -j rule show"] = '[{"priority": 0, "src": "all", "table": "local"}]'
        self.machine.tools["nft -j list ruleset"] = '{"nftables": []}'
        self.machine.tools[
            "systemctl show --no-pager --property=Id,LoadState,LimitMEMLOCKSoft slurmd.service "
            "containerd.service docker.service crio.service kubelet.service k3s.service pbs.service"
        ] = "Id=slurmd.service\nLoadState=loaded\nLimitMEMLOCKSoft=infinity\n"
        self.library = "/opt/fabricd/lib/libnccl-net-fabric.so"
        self.write(self.library, PLUGIN)

    def load(self, text):
        for line in text.splitlines():
            if line.startswith("@"):
                word, _, rest = line[1:].partition(" ")
                getattr(self, word)(*rest.split(" "))
            elif " = " in line:
                path, _, content = line.partition(" = ")
                self.write(path, content.replace("\\n", "\n") + "\n")
            elif " -> " in line:
                self.link(*line.split(" -> "))

    def path(self, name):
        return self.root / str(name).lstrip("/")

    def write(self, name, content):
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def link(self, name, target):
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        if path.name.startswith(("mlx5", "bnxt", "rxe")):
            self._verbs[path.name] = "sys/" + target.removeprefix("../../")

    def pci(self, directory, vendor, kind, acs):
        name = directory.rsplit("/", 1)[1]
        self.write(f"{directory}/vendor", vendor)
        self.write(f"{directory}/class", kind)
        self.write(f"{directory}/config", config_space(acs.partition("=")[2]))
        depth = directory.removeprefix("sys/")
        self.path("sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
        self.path(f"sys/bus/pci/devices/{name}").symlink_to(f"../../../{depth}")

    def acs(self, function, control):
        self.path(f"sys/bus/pci/devices/{function}/config").write_bytes(config_space(control))

    def verbs(self, directory, driver, board):
        self.write(f"{directory}/hca_type", board)
        self.write(f"{directory}/fw_ver", "28.39.1002")
        self.link(f"{directory}/device", f"../../../{directory.split('/')[-3]}")
        self.link(f"{directory}/device/driver", f"../../../../bus/pci/drivers/{driver}")

    def port(self, device, number, layer, state, *rate):
        base = f"{self._verbs[device]}/ports/{number}"
        self.write(f"{base}/link_layer", layer)
        self.write(f"{base}/state", state.replace(":", ": "))
        self.write(f"{base}/rate", " ".join(rate))

    def gid(self, device, number, index, value, *kind):
        base = f"{self._verbs[device]}/ports/{number}"
        self.write(f"{base}/gids/{index}", value)
        name, _, netdev = " ".join(kind).partition("|")
        self.write(f"{base}/gid_attrs/types/{index}", name)
        if netdev:
            self.write(f"{base}/gid_attrs/ndevs/{index}", netdev)

    def empty(self, device, number, first, count):
        """Entries without a GID: zeros, and EINVAL for their attributes."""
        base = f"{self._verbs[device]}/ports/{number}"
        for index in range(int(first), int(first) + int(count)):
            self.write(f"{base}/gids/{index}", EMPTY_GID)
            for kind in ("types", "ndevs"):
                self.write(f"{base}/gid_attrs/{kind}/{index}", "")
                self.fail(f"sys/class/infiniband/{device}/ports/{number}/gid_attrs/{kind}/{index}")

    def no_gids(self, device, number=1):
        for path in self.path(f"{self._verbs[device]}/ports/{number}/gids").glob("*"):
            self.empty(device, number, path.name, 1)

    def fail(self, name, code=errno.EINVAL):
        self.failing[name] = code

    def net(self, name, *words):
        values = dict(word.split("=", 1) for word in words)
        base = f"sys/class/net/{name}"
        if place := values.get("pci"):
            real = f"{place}/net/{name}"
            self.write(f"{real}/mtu", values["mtu"])
            self.path("sys/class/net").mkdir(parents=True, exist_ok=True)
            self.path(base).symlink_to(f"../../{real.removeprefix('sys/')}")
            self.link(f"{base}/device", f"../../../{place.rsplit('/', 1)[1]}")
        else:
            self.write(f"{base}/mtu", values["mtu"])
        if driver := values.get("driver"):
            if not place:
                self.path(f"{base}/device").mkdir()
            if not self.path(f"{base}/device/driver").is_symlink():
                self.link(f"{base}/device/driver", f"../../../../bus/pci/drivers/{driver}")
        self.write(f"{base}/operstate", "up")
        for key, value in (("arp_ignore", 0), ("arp_announce", 0), ("rp_filter", 0)):
            for scope in ("all", name):
                self.write(f"proc/sys/net/ipv4/conf/{scope}/{key}", str(value))

    def sysctl(self, name, key, value):
        self.write(f"proc/sys/net/ipv4/conf/{name}/{key}", str(value))

    def bond(self, name, members, mtu=9000):
        self.net(name, f"mtu={mtu}")
        for member in members:
            self.link(f"sys/class/net/{member}/master", f"../../{name}")

    def uverbs(self, node, device):
        """A device node, played by /dev/null: mknod(2) needs root."""
        self.write(f"sys/class/infiniband_verbs/{node}/ibdev", device)
        number = Path("/dev/null").stat().st_rdev
        self.write(
            f"sys/class/infiniband_verbs/{node}/dev", f"{os.major(number)}:{os.minor(number)}"
        )
        self.path("dev/infiniband").mkdir(parents=True, exist_ok=True)
        self.path(f"dev/infiniband/{node}").symlink_to("/dev/null")

    def addresses(self, by_netdev):
        listed = []
        for netdev, text in by_netdev.items():
            entries = [text] if isinstance(text, str) else text
            infos = [{"local": e.split("/")[0], "prefixlen": int(e.split("/")[1])} for e in entries]
            listed.append({"ifname": netdev, "addr_info": infos})
        self.machine.tools["ip -j address show"] = json.dumps(listed)

    def config(self, *rails):
        links = "".join(f'[[links]]\nnetdev = "{r}"\nrail = {n}\n' for n, r in enumerate(rails))
        self.write("etc/fabricd/fabricd.toml", f'[host]\nname = "h"\n{links}')

    def process(self, pid, variables, limit="unlimited", capabilities=0, maps="libnccl.so.2"):
        base = f"proc/{pid}"
        data = b"\0".join(f"{name}={value}".encode() for name, value in variables.items()) + b"\0"
        self.write(f"{base}/environ", data)
        self.write(f"{base}/limits", f"Max locked memory   {limit}   {limit}   bytes\n")
        self.write(f"{base}/status", f"Name:\tpython\nCapEff:\t{capabilities:016x}\n")
        self.write(f"{base}/uid_map", "         0          0 4294967295\n")
        self.write(f"{base}/comm", "python\n")
        self.write(f"{base}/maps", f"7f00-7f01 r-xp 0 0:0 0 /usr/lib/{maps}\n")

    def facts(self):
        """Gathered of this host."""
        wanted = GatherOptions(Path("/etc/fabricd/fabricd.toml"), Path(self.library), self.pids,
                        self.environment)  # fmt: skip
        return gather(FailingTree(self.root, self.failing), self.machine, wanted)

    def findings(self, *only):
        report = run(self.facts(), only)
        assert not [what for what in report.unexamined if what.startswith("check ")], report
        return report.findings


def verbs_answer(**mtus):
    """What libibverbs says: device → (active MTU, greatest MTU) of its port 1."""
    devices = {
        device: {"1": {"active_mtu": active, "max_mtu": greatest}}
        for device, (active, greatest) in mtus.items()
    }
    return {"library": "libibverbs.so.1", "error": "", "devices": devices}


def config_space(acs):
    """4096 bytes: AER at 0x100, then ACS with this control register, or nothing for ``none``."""
    space = bytearray(4096)
    has = acs != "none"
    struct.pack_into("<I", space, 0x100, 0x0001 | 2 << 16 | (0x148 if has else 0) << 20)
    if has:
        struct.pack_into("<IHH", space, 0x148, 0x000D | 1 << 16, 0x5F, int(acs, 16))
    return bytes(space)


def seen(findings, severity=None):
    """Subjects and texts, for comparisons that name what was found."""
    return [(f.subject, f.seen) for f in findings if severity is None or f.severity is severity]
