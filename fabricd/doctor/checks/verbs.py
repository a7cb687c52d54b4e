"""Checks of verbs devices: there, active, and reachable through a device node."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from fabricd.doctor.facts import HostFacts
from fabricd.doctor.finding import Finding, Severity

VERBS_MODULES = {
    "mlx5_core": "mlx5_ib",
    "mlx4_en": "mlx4_ib",
    "mlx4_core": "mlx4_ib",
    "bnxt_en": "bnxt_re",
    "ice": "irdma",
    "i40e": "irdma",
    "idpf": "irdma",
    "qede": "qedr",
    "ionic": "ionic_rdma",
    "hns3": "hns_roce_hw_v2",
    "efa": "efa",
}
"""Driver of an interface → the module that makes its verbs device."""


def devices(facts: HostFacts) -> Iterator[Finding]:
    """A NIC that can do RDMA and shows no verbs device; the absence of all."""
    served = {name for port in facts.ports for name in port.netdevs}
    served |= {name for name, netdev in facts.netdevs.items() if netdev.pci and netdev.pci in
               {device.pci for device in facts.verbs}}  # fmt: skip
    for name, netdev in facts.netdevs.items():
        module = VERBS_MODULES.get(netdev.driver)
        if module is None or name in served or netdev.master in served:
            continue
        if facts.configured and name not in facts.rails:
            continue  # a management port needs no verbs
        if module not in facts.modules:
            yield Finding(
                Severity.WARNING, name,
                f"{name} ({netdev.driver}) can do RDMA, but the module {module} is not loaded.",
                f"modprobe {module}; add it to /etc/modules-load.d. Until then {name} carries TCP.",
            )  # fmt: skip
        else:
            yield Finding(
                Severity.NOTE, name,
                f"{name} ({netdev.driver}) has no verbs device, although {module} is loaded.",
                "Look for the reason in `dmesg`: firmware, RoCE disabled, or another namespace.",
            )  # fmt: skip
    if not facts.verbs:
        yield Finding(
            Severity.NOTE, "host",
            "There is no verbs device in this host: the plugin carries TCP.",
            "Nothing, where this is meant; else load the NICs' RDMA modules.",
        )  # fmt: skip
        return
    if "ib_uverbs" not in facts.modules and not facts.nodes:
        yield Finding(
            Severity.CRITICAL, "host",
            "The module ib_uverbs is not loaded: no process can use verbs.",
            "modprobe ib_uverbs; add it to /etc/modules-load.d.",
        )  # fmt: skip
    if not facts.libibverbs and not any("libibverbs" in name for name in facts.unexamined):
        yield Finding(
            Severity.WARNING, "host",
            "libibverbs.so.1 is not installed here: the plugin carries TCP.",
            "Install libibverbs1 and ibverbs-providers, in the job's container too.",
        )  # fmt: skip


def port_states(facts: HostFacts) -> Iterator[Finding]:
    """Ports of rails that are not ACTIVE, and rails whose ports differ in rate."""
    ports = [port for port in facts.ports if facts.concerns(port)]
    for port in ports:
        if port.active or not port.state:
            continue
        action = "Look at cable, optic and switch port; `fabricctl explain` says what the link saw."
        if port.state in ("INIT", "ARMED") and not port.roce:
            action = "No subnet manager has activated the port: start one, or look at its log."
        # A port that nobody named as a rail may be one that nobody cabled.
        severity = Severity.CRITICAL if facts.configured else Severity.WARNING
        yield Finding(severity, str(port), f"{port} is {port.state}, not ACTIVE.", action)
    rates = {port.rate for port in ports if port.active and port.rate}
    if len(rates) > 1:
        rows = tuple(f"{port}: {port.rate}" for port in ports)
        yield Finding(
            Severity.WARNING, "host", "Ports of the rails run at different rates.",
            "Look for a cable, breakout or switch port that negotiated less.", rows,
        )  # fmt: skip


def nodes(facts: HostFacts) -> Iterator[Finding]:
    """Device nodes that are missing, not permitted, or another namespace's."""
    wrong = [node for node in facts.nodes if node.problem]
    needed = {port.device for port in facts.ports if facts.concerns(port)}
    if not facts.configured and len(wrong) == len(facts.nodes):
        needed = {node.device for node in wrong}
    spare = [node for node in wrong if node.device not in needed]
    for node in wrong:
        if node in spare:
            continue
        yield Finding(
            Severity.CRITICAL, node.device,
            f"Verbs cannot open {node.device}: {node.problem}.", _node_action(node.code),
        )  # fmt: skip
    if spare:
        yield Finding(
            Severity.NOTE, "host",
            f"{len(spare)} of {len(facts.nodes)} verbs devices cannot be opened here, and no rail "
            "needs them.", "Nothing, where the container was given the others on purpose.",
            tuple(f"{node.device}: {node.problem}" for node in spare),
        )  # fmt: skip
    without = {device.name for device in facts.verbs} - {node.device for node in facts.nodes}
    for name in sorted(without):
        yield Finding(
            Severity.WARNING, name, f"The kernel made no uverbs device for {name}.",
            "Load ib_uverbs; a device that comes later than it gets its node by udev.",
        )  # fmt: skip


def _node_action(code: int) -> str:
    if code == errno.ENOENT:
        return (
            "In a container: give it the devices (`--device=/dev/infiniband`, a device plugin, or "
            "`privileged`). On a host: look at udev."
        )
    if code == errno.EACCES:
        return "Give the job's user read and write access (0666 is udev's usual mode)."
    if code == errno.EPERM:
        return (
            "The container's device cgroup refuses it, or its network namespace does not own "
            "the device (`rdma system show` says exclusive): grant it, or move the device in."
        )
    return "Remove the stale node and let udev make it again, or restart the container."
