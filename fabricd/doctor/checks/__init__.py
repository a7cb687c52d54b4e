"""The doctor's checks. To add one: write a function from facts to findings, and add a row here.

A function yields findings and returns; it reads nothing and has no state. Its row's name is also
the anchor of its section in docs/reference/doctor.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from fabricd.doctor.checks import gids, host, nccl_verbs, nccl_wide, network, plugin, qos, verbs
from fabricd.doctor.facts import HostFacts
from fabricd.doctor.finding import Finding, Report


@dataclass(frozen=True, slots=True)
class Check:
    """A check. ``name``: its anchor in docs/reference/doctor.md; ``title``: what it looks at."""

    name: str
    title: str
    find: Callable[[HostFacts], Iterable[Finding]]


CHECKS = (
    Check("verbs-devices", "verbs devices and the modules that make them", verbs.devices),
    Check("port-state", "states of verbs ports", verbs.port_states),
    Check("uverbs", "device nodes of verbs", verbs.nodes),
    Check("gid-table", "GID tables of RoCE ports", gids.tables),
    Check("gid-namespace", "addresses behind GIDs", gids.namespaces),
    Check("mtu", "MTU of rails and of verbs ports", network.mtus),
    Check("memlock", "locked memory (RLIMIT_MEMLOCK)", host.memlock),
    Check("acs", "Access Control Services of PCIe bridges", host.acs),
    Check("gpu-memory", "peer-memory modules and dmabuf", host.gpu_memory),
    Check("qos", "PFC, DSCP and traffic class", qos.traffic_classes),
    Check("plugin", "the plugin's library", plugin.library),
    Check("nccl-variables", "NCCL's variables that concern every transport", nccl_wide.fights),
    Check("nccl-ib-variables", "NCCL_IB_* variables", nccl_verbs.fights),
    Check("bonds", "bonds and their members", network.bonds),
    Check("firewall", "rules that stop UDP port 4791", host.firewall),
    Check("addresses", "duplicate addresses, ARP and reverse paths", network.addresses),
)


def run(facts: HostFacts, only: Collection[str] = ()) -> Report:
    """Run the checks.

    Args:
        facts: of a host.
        only: names of the checks to run; all when empty.

    A check that raises is itself a thing that could not be looked at; the others still run.
    """
    chosen = [check for check in CHECKS if not only or check.name in only]
    unexamined = dict(facts.unexamined)
    findings: list[Finding] = []
    for check in chosen:
        try:
            findings += [replace(found, check=check.name) for found in check.find(facts)]
        except Exception as error:  # one faulty check must not hide what the others see
            unexamined[f"check {check.name}"] = f"it failed: {error!r}"
    findings.sort(key=lambda finding: -finding.severity)
    return Report(tuple(findings), tuple(check.name for check in chosen), unexamined)
