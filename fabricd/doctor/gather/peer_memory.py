"""GPUs, and the kernel modules through which a NIC reaches their memory."""

from __future__ import annotations

import re

from fabricd.doctor.facts import PeerMemory
from fabricd.doctor.tree import Tree

_DEVICES = "sys/bus/pci/devices"
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_DISPLAY = ("0x0300", "0x0302", "0x0380", "0x1200")
"""PCI classes of GPUs: VGA, 3D and other display controllers, processing accelerators."""
CLIENTS = (
    "sys/kernel/mm/memory_peers/nv_mem/version",
    "sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "sys/module/nvidia_peermem/version",
    "sys/kernel/mm/memory_peers/amdkfd/version",
)
"""Where peer-memory clients show themselves; NCCL looks at the first three."""


def peer_memory(tree: Tree) -> PeerMemory:
    """GPUs and peer-memory clients of this host."""
    gpus = {}
    for function in tree.names(_DEVICES):
        vendor = tree.text(f"{_DEVICES}/{function}/vendor") or ""
        if vendor in _VENDORS and (tree.text(f"{_DEVICES}/{function}/class") or "")[:6] in _DISPLAY:
            gpus[function] = _VENDORS[vendor]
    driver = tree.text("proc/driver/nvidia/version")
    release = re.match(r"(\d{1,4})\.(\d{1,4})", tree.text("proc/sys/kernel/osrelease") or "")
    return PeerMemory(
        gpus=gpus,
        modules=tuple(name for name in CLIENTS if tree.exists(name)),
        open_nvidia=None if driver is None else "Open Kernel Module" in driver,
        kernel=(int(release[1]), int(release[2])) if release else (0, 0),
    )
