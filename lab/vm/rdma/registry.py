"""The RDMA labs of this machine and who owns them.

A lab is owned by one process. When that process is gone, so are its machines (QEMU gets a signal),
and the next lab of the name takes the directory over.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from typing import Any, Literal

from lab.lifecycle import procs
from lab.lifecycle.registry import LabError
from lab.topology import Topology
from lab.vm.rdma.site import GuestDir
from telemetry.service import durable

Kind = Literal["namespaces", "pair"]


@dataclasses.dataclass(frozen=True, slots=True)
class GuestLabInfo:
    """What lab.json says."""

    kind: Kind
    topology: Topology
    owner: procs.ProcessId

    @property
    def dir(self) -> GuestDir:
        """Where the lab's files lie."""
        return GuestDir(self.topology.name)


def load(name: str) -> GuestLabInfo | None:
    """The lab of that name, whether its owner lives or not; None where there is none."""
    try:
        row: dict[str, Any] = json.loads(GuestDir(name).info.read_text())
        return GuestLabInfo(
            row["kind"], Topology(**row["topology"]), procs.ProcessId(**row["owner"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def clean_stale() -> list[str]:
    """Remove the directories of labs whose owner is gone; their names."""
    cleaned = []
    for path in sorted(GuestDir("x").root.parent.glob("*/lab.json")):
        info = load(path.parent.name)
        if info is not None and not info.owner.alive:
            shutil.rmtree(path.parent, ignore_errors=True)
            cleaned.append(path.parent.name)
    return cleaned


def claim(where: GuestDir, kind: Kind, topology: Topology) -> None:
    """Make the directory of a lab for the calling process.

    Raises:
        LabError: a living process owns a lab of that name.
    """
    where.root.parent.mkdir(parents=True, exist_ok=True)
    clean_stale()
    while True:
        try:
            where.root.mkdir()
        except FileExistsError:
            other = load(where.name)
            if other is not None and other.owner.alive:
                raise LabError(
                    f"RDMA lab '{where.name}' is up (owner pid {other.owner.pid}); "
                    f"take it down: ./run lab vm down --name {where.name}"
                ) from None
            shutil.rmtree(where.root, ignore_errors=True)
        else:
            break
    row = {
        "kind": kind,
        "topology": dataclasses.asdict(topology),
        "owner": dataclasses.asdict(procs.myself()),
    }
    durable.replace_text(where.info, json.dumps(row, indent=1) + "\n", sync=False)


def ready(name: str) -> GuestLabInfo:
    """The lab of that name.

    Raises:
        LabError: there is none, its owner is gone, or it has not come up yet.
    """
    info = load(name)
    if info is None or not info.owner.alive:
        raise LabError(f"no RDMA lab '{name}'; start it: ./run lab vm up --name {name}")
    if not info.dir.socket.exists():
        raise LabError(f"RDMA lab '{name}' is still booting")
    return info
