"""Facts of this machine for a support case: kernel, NICs, packages, journal. Reads, never changes.

Every fact is either there or says why it is not; a tool that is not installed is no error.
"""

from __future__ import annotations

import contextlib
import os
import platform
import stat
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from fabricd.process import bounded_run

Fact = tuple[str, str]
"""Name in the archive, text."""

COMMAND_S = 10.0
MAX_READ = 256 * 1024
MAX_PRINTED = 256 * MAX_READ
"""Bytes of a tool's output; one that prints more is ended."""
NOT_READ = "(not read:"
"""So begins what stands for a file that could not be read."""
_FILES = (
    "/etc/os-release", "/proc/version", "/proc/cmdline", "/proc/uptime", "/proc/loadavg",
    "/proc/meminfo", "/proc/interrupts", "/proc/net/dev", "/proc/net/snmp",
    "/proc/net/softnet_stat",
    "/sys/devices/system/cpu/online", "/sys/devices/system/cpu/isolated",
    "/sys/devices/system/cpu/nohz_full", "/proc/sys/net/ipv4/conf/all/rp_filter",
)  # fmt: skip
_NETDEV = (
    "operstate", "carrier", "carrier_changes", "carrier_up_count", "carrier_down_count", "mtu",
    "speed", "duplex", "address", "tx_queue_len", "device/vendor", "device/device",
    "device/numa_node", "device/current_link_speed", "device/current_link_width",
    "device/max_link_speed", "device/max_link_width", "device/aer_dev_correctable",
    "device/aer_dev_fatal", "device/aer_dev_nonfatal",
)  # fmt: skip
_COMMANDS = {
    "host/ip-link.txt": ["ip", "-s", "-d", "link"],
    "host/ip-addr.txt": ["ip", "addr"],
    "host/ip-rule.txt": ["ip", "rule"],
    "host/ip-route.txt": ["ip", "route", "show", "table", "all"],
    "host/rdma-link.txt": ["rdma", "link"],
    "host/rdma-statistic.txt": ["rdma", "statistic"],
    "host/devlink-health.txt": ["devlink", "health"],
    "host/lspci.txt": ["lspci", "-nn"],
    "host/units.txt": ["systemctl", "status", "--no-pager", "-n0", "fabricd", "fabric-prober"],
    "host/unit-files.txt": ["systemctl", "cat", "--no-pager", "fabricd", "fabric-prober"],
    "host/journal.txt": ["journalctl", "--no-pager", "-o", "short-iso-precise", "-n", "5000",
                         "-u", "fabricd", "-u", "fabric-prober"],
}  # fmt: skip
_ETHTOOL = {"driver": "-i", "settings": "", "statistics": "-S", "module": "-m", "fec": "--show-fec",
            "pause": "-a", "rings": "-g", "coalesce": "-c"}  # fmt: skip


def versions() -> dict[str, str]:
    """fabricd, what it runs on, and its packages."""
    from fabricd import __version__

    out = {
        "fabricd": __version__,
        "python": sys.version.split()[0],
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    with contextlib.suppress(metadata.PackageNotFoundError):
        for line in metadata.requires("fabricd") or []:
            if "extra ==" in line:
                continue
            name = line.split(">")[0].split("<")[0].split("=")[0].strip()
            with contextlib.suppress(metadata.PackageNotFoundError):
                out[name] = metadata.version(name)
    return out


def kernel() -> Iterator[Fact]:
    """Files of the kernel and the distribution."""
    for name in _FILES:
        yield "host/" + name.strip("/").replace("/", "-"), read(Path(name))


def commands() -> Iterator[Fact]:
    """What other tools say."""
    for name, argv in _COMMANDS.items():
        yield name, run(argv)


def netdev(name: str, sysfs: Path = Path("/sys")) -> Iterator[Fact]:
    """One interface: sysfs, driver, verbs device, ethtool."""
    base = sysfs / "class/net" / name
    if not base.exists():
        yield f"nic/{name}/sysfs.txt", "there is no such interface\n"
        return
    lines = [f"{key}: {read(base / key).strip()}" for key in _NETDEV]
    for link in ("device/driver", "device"):
        with contextlib.suppress(OSError):
            lines.append(f"{link} -> {(base / link).readlink()}")
    yield f"nic/{name}/sysfs.txt", "\n".join(lines) + "\n"
    for device in _children(base / "device/infiniband"):
        yield f"nic/{name}/{device.name}.txt", _verbs(device)
    for what, flag in _ETHTOOL.items():
        yield f"nic/{name}/ethtool-{what}.txt", run(["ethtool", *([flag] if flag else []), name])


def read(path: Path, *, follow: bool = True) -> str:
    """A regular file's text, bounded; or why there is none. Never waits for a FIFO or a device.

    Args:
        path: of the file.
        follow: a symbolic link too; not where others than root may make one.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
        with open(fd, "rb") as file:  # noqa: PTH123 - of a descriptor
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return f"{NOT_READ} not a regular file)\n"
            data = file.read(MAX_READ + 1)
        if len(data) > MAX_READ:  # A line cut in two could hide half a secret.
            data = data[:MAX_READ].rpartition(b"\n")[0] + b"\n(cut here)\n"
        return data.decode("utf-8", "replace")
    except OSError as error:
        return f"{NOT_READ} {error.strerror})\n"


def run(argv: list[str]) -> str:
    """A tool's output and errors, bounded in time and size; or why there is none."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    done = bounded_run.run(argv, COMMAND_S, MAX_PRINTED, merged=True, env=environment)
    if done.missing:
        return f"({argv[0]} is not installed)\n"
    if done.problem:
        return f"({' '.join(argv)}: {done.problem})\n"
    data = done.output
    if len(data) > 16 * MAX_READ:
        data = b"(cut here)\n" + data[-16 * MAX_READ :].partition(b"\n")[2]
    return data.decode("utf-8", "replace") + (
        f"(exit status {done.status})\n" if done.status else ""
    )


def _verbs(device: Path) -> str:
    lines = [f"{key}: {read(device / key).strip()}" for key in ("fw_ver", "hca_type", "node_guid")]
    for port in _children(device / "ports"):
        lines += [
            f"port {port.name} {key}: {read(port / key).strip()}"
            for key in ("state", "phys_state", "rate", "lid", "link_layer")
        ]
        for group in ("counters", "hw_counters"):
            lines += [
                f"port {port.name} {group}/{file.name}: {read(file).strip()}"
                for file in _children(port / group)
            ]
    return "\n".join(lines) + "\n"


def _children(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []
