"""Checks of the host: locked memory, PCIe, GPU memory, firewall."""

from __future__ import annotations

from collections.abc import Iterator

from fabricd.doctor.facts import HostFacts
from fabricd.doctor.finding import Finding, Severity

TOO_LITTLE = 64 << 20
"""Bytes of locked memory below which a verbs connection fails at its first buffers."""
LITTLE = 1 << 30
"""Bytes below which a job of many peers may fail later."""
_REDIRECTS = {0x4: "request redirect", 0x8: "completion redirect"}
"""Bits of the ACS control register that send traffic between two functions over the root."""


def memlock(facts: HostFacts) -> Iterator[Finding]:
    """Limits that are too small to register buffers with a NIC."""
    for held in facts.memlock:
        if held.limit is None or held.exempt or held.limit >= LITTLE:
            continue
        if held.limit < TOO_LITTLE:
            severity = Severity.CRITICAL if facts.verbs else Severity.NOTE
            outcome = "ibv_reg_mr and ibv_create_cq fail with ENOMEM"
        else:
            severity = Severity.WARNING if facts.verbs else Severity.NOTE
            outcome = "a job with many peers or large host buffers fails with ENOMEM"
        if held.whose.startswith("unit "):
            action = (
                f"`systemctl edit {held.whose.removeprefix('unit ')}`: [Service] "
                "LimitMEMLOCK=infinity, then restart it; jobs inherit it."
            )
        else:
            action = (
                "`ulimit -l unlimited`: limits.d for logins (`* - memlock unlimited`), "
                "LimitMEMLOCK=infinity for the unit that starts jobs, `--ulimit memlock=-1` for "
                "docker."
            )
        yield Finding(
            severity, held.whose,
            f"{held.whose} may lock {_size(held.limit)} of memory: {outcome}.", action,
        )  # fmt: skip


def acs(facts: HostFacts) -> Iterator[Finding]:
    """Bridges above NICs that redirect peer-to-peer traffic over the root complex."""
    redirecting = []
    for bridge in facts.bridges:
        control = bridge.acs_control or 0
        names = [name for bit, name in _REDIRECTS.items() if control & bit]
        if names:
            below = ", ".join(bridge.above)
            redirecting.append(f"{bridge.address} ({', '.join(names)}), above {below}")
    if not redirecting:
        return
    with_gpu = bool(facts.peer_memory.gpus)
    yield Finding(
        Severity.WARNING if with_gpu else Severity.NOTE, "host",
        f"ACS is on in {len(redirecting)} PCIe bridges above the NICs: GPUDirect goes over the "
        "root complex, slowly, or fails with LOC_PROT_ERR. That is no fault of a path.",
        "On bare metal turn ACS off in the BIOS, or at boot: `setpci -s BRIDGE ECAP_ACS+6.w=0000`. "
        "Under virtualization keep it, and use ATS.",
        tuple(redirecting),
    )  # fmt: skip


def gpu_memory(facts: HostFacts) -> Iterator[Finding]:
    """Whether a NIC can reach GPU memory: a peer-memory module, or dmabuf."""
    memory = facts.peer_memory
    if not memory.gpus or not facts.verbs:
        return
    vendors = set(memory.gpus.values())
    dmabuf = memory.kernel >= (5, 12)
    if "NVIDIA" in vendors and not memory.modules:
        if memory.open_nvidia is None:
            yield Finding(
                Severity.WARNING, "host",
                f"There are {len(memory.gpus)} GPUs, and the NVIDIA driver is not loaded.",
                "Load the driver: without it neither NCCL nor GPUDirect works.",
            )  # fmt: skip
        elif not (dmabuf and memory.open_nvidia):
            reason = (
                "the closed NVIDIA driver exports no dmabuf" if dmabuf
                else "this kernel is older than 5.12, so verbs take no dmabuf"
            )  # fmt: skip
            yield Finding(
                Severity.WARNING, "host",
                f"No peer-memory module is loaded, and {reason}: all traffic of GPUs is copied "
                "through host memory.",
                "modprobe nvidia_peermem, or use NVIDIA's open kernel modules on Linux 5.12 or "
                "newer.",
            )  # fmt: skip
    if "AMD" in vendors and not memory.modules and not dmabuf:
        yield Finding(
            Severity.WARNING, "host",
            "No peer-memory client of amdgpu is loaded, and this kernel is older than 5.12.",
            "Install amdgpu-dkms with peer memory, or a newer kernel.",
        )  # fmt: skip


def firewall(facts: HostFacts) -> Iterator[Finding]:
    """Rules that drop RoCE v2 packets. NICs that do RoCE themselves pass netfilter by."""
    if facts.firewall is None or not any(port.roce for port in facts.ports):
        return
    soft = any(not device.pci for device in facts.verbs)
    severity = Severity.CRITICAL if soft else Severity.NOTE
    action = (
        "Accept UDP port 4791 on the rails. Hardware RoCE passes the host's netfilter by, so for "
        "it look at the filters of switches and of the hypervisor instead."
    )
    if facts.firewall.blocking:
        yield Finding(
            severity, "host", "Firewall rules drop UDP port 4791, which is RoCE v2.", action,
            facts.firewall.blocking,
        )  # fmt: skip
    if facts.firewall.default_drop:
        yield Finding(
            Severity.WARNING if soft else Severity.NOTE, "host",
            "The firewall drops input by default, and no rule of that table accepts UDP port 4791.",
            action, facts.firewall.default_drop,
        )  # fmt: skip


def _size(number: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number >= 1 << shift:
            return f"{number / (1 << shift):.4g} {unit}"
    return f"{number} bytes"
