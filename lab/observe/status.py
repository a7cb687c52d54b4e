"""What a running lab looks like right now."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab.faults.truth import Row, Truth
from lab.lifecycle import procs
from lab.lifecycle.registry import LabInfo
from lab.network import build


@dataclass(frozen=True, slots=True)
class PortStatus:
    """A NIC: ``up``, ``no-carrier`` or ``admin-down``, and the kernel's count of losses."""

    rail: int
    state: str
    carrier_downs: int


@dataclass(frozen=True, slots=True)
class HostStatus:
    """A host's NICs and the commands that run in it."""

    name: str
    ports: list[PortStatus]
    processes: list[str]


@dataclass(frozen=True, slots=True)
class LabStatus:
    """A whole lab."""

    name: str
    hosts: int
    rails: int
    spines: int
    owner: int
    host_rows: list[HostStatus]
    faults: list[Row]


def faults_in_force(truth: Truth) -> list[Row]:
    """Start rows that no end row has followed, of processes that still run."""
    open_: dict[str, Row] = {}
    for row in truth.rows():
        if row["phase"] == "start":
            open_[row["id"]] = row
        elif row["phase"] == "end":
            open_.pop(row["id"], None)
    return [r for r in open_.values() if procs.ProcessId.of(int(r["id"].split("-")[0]))]


def read_status(info: LabInfo) -> LabStatus:
    """Ask the kernel."""
    topology = info.topology
    rows = []
    for i in range(topology.hosts):
        ns = topology.ns("host", i)
        links = build.read_links(ns)
        ports = []
        for r in range(topology.rails):
            link = links[f"rail{r}"]
            state = "up" if link.carrier else "no-carrier" if link.up else "admin-down"
            ports.append(PortStatus(r, state, link.carrier_down_count))
        commands = []
        for who in procs.inhabitants([ns]):
            try:
                commands.append(f"{Path(f'/proc/{who.pid}/comm').read_text().strip()}({who.pid})")
            except OSError:
                continue
        rows.append(HostStatus(f"h{i}", ports, commands))
    return LabStatus(
        topology.name,
        topology.hosts,
        topology.rails,
        topology.spines,
        info.owner.pid,
        rows,
        faults_in_force(Truth(info.dir.truth)),
    )
