"""Gathers a host's facts from files below a root and from the machine; judges nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fabricd.doctor.facts import HostFacts
from fabricd.doctor.gather import (
    firewall,
    limits,
    nccl,
    network,
    pci,
    peer_memory,
    plugin,
    processes,
    qos,
    verbs,
)
from fabricd.doctor.machine import Machine
from fabricd.doctor.tree import Tree


@dataclass(frozen=True, slots=True)
class GatherOptions:
    """What an operator asked for.

    Attributes:
        config: the daemon's main configuration file, which names the rails.
        library: the plugin's library; None: where `plugin env` would find it.
        pids: processes whose environments are looked at.
        environment: of the caller; a job's shell, or what a job will inherit.
    """

    config: Path = Path("/etc/fabricd/fabricd.toml")
    library: Path | None = None
    pids: Sequence[int] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


def gather_for_job(tree: Tree, machine: Machine, wanted: GatherOptions) -> HostFacts:
    """The facts by which hosts of a job are compared: verbs, rails, plugin and variables."""
    return _for_job(tree, machine, wanted, {})


def _for_job(
    tree: Tree, machine: Machine, wanted: GatherOptions, others: Mapping[int, Mapping[str, str]]
) -> HostFacts:
    netdevs = network.netdevs(tree)
    answer = verbs.query(tree, machine)
    devices = verbs.devices(tree, answer)
    rails, configured, rails_by, host = network.rails(tree, wanted.config, netdevs, devices)
    return HostFacts(
        verbs=devices,
        nodes=verbs.nodes(tree, machine, devices),
        netdevs=netdevs,
        host=host,
        rails=rails,
        configured=configured,
        rails_by=rails_by,
        memlock=tuple(limits.own_limit(tree)),
        plugin=plugin.library(tree, machine, wanted.library, wanted.environment),
        libibverbs=answer.library,
        nccl=nccl.environments(tree, wanted.environment, others),
        unexamined=tree.unexamined,
    )


def gather(tree: Tree, machine: Machine, wanted: GatherOptions) -> HostFacts:
    """All facts of a host; what could not be looked at is named in ``unexamined``."""
    found = processes.processes(tree, machine, wanted.pids)
    job = _for_job(tree, machine, wanted, found.environments)
    rails = [job.netdevs[rail] for rail in job.rails if rail in job.netdevs]
    return replace(
        job,
        addresses=network.addresses(tree, machine),
        source_rules=network.source_rules(tree, machine),
        modules=network.modules(tree),
        bridges=pci.bridges(tree, job.verbs, rails),
        memlock=limits.memlock(tree, machine, found.jobs),
        qos=qos.settings(tree, machine, job.rails, job.verbs),
        peer_memory=peer_memory.peer_memory(tree),
        firewall=firewall.rules(tree, machine),
    )
