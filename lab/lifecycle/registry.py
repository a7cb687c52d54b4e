"""The labs of this machine: their directories, who owns them, and removing stale ones.

A lab is owned by one process. When that process is gone without having removed the lab, the lab is
stale, and the next start of any lab removes it.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.lifecycle import procs
from lab.network import build, netns
from lab.topology import PREFIX, Topology
from telemetry.service import durable

ROOT = Path("/run/fabric-lab")


class LabError(RuntimeError):
    """The lab cannot do that; the text says why and what would help."""


@dataclasses.dataclass(frozen=True, slots=True)
class LabDir:
    """Where the files of one lab lie."""

    name: str

    @property
    def root(self) -> Path:
        """``/run/fabric-lab/<lab>``."""
        return ROOT / self.name

    @property
    def info(self) -> Path:
        """Owner, topology and state."""
        return self.root / "lab.json"

    @property
    def truth(self) -> Path:
        """Ground truth of faults."""
        return self.root / "truth.jsonl"

    @property
    def holds(self) -> Path:
        """Which ports are held down by whom."""
        return self.root / "holds"

    @property
    def pids(self) -> Path:
        """One file per process started."""
        return self.root / "pids"

    @property
    def key(self) -> Path:
        """Probe key, shared by all hosts."""
        return self.root / "probe.key"

    def host(self, index: int) -> Path:
        """Directory of a host."""
        return self.root / f"h{index}"


@dataclasses.dataclass(frozen=True, slots=True)
class LabInfo:
    """What lab.json says."""

    topology: Topology
    owner: procs.ProcessId
    state: str
    """building, ready or closing."""

    @property
    def dir(self) -> LabDir:
        """Where its files lie."""
        return LabDir(self.topology.name)

    @property
    def stale(self) -> bool:
        """Whether its owner is gone."""
        return not self.owner.alive

    def save(self) -> None:
        """Write lab.json whole or not at all."""
        row = {
            "state": self.state,
            "owner": dataclasses.asdict(self.owner),
            "topology": dataclasses.asdict(self.topology),
            "namespaces": [name for _, _, name in self.topology.namespaces()],
        }
        durable.replace_text(self.dir.info, json.dumps(row, indent=1) + "\n", sync=False)


def load(name: str) -> LabInfo | None:
    """The lab of that name, stale or not; None when there is none or its file is unreadable."""
    try:
        row: dict[str, Any] = json.loads(LabDir(name).info.read_text())
        owner = procs.ProcessId(**row["owner"])
        return LabInfo(Topology(**row["topology"]), owner, str(row["state"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def lab_of(namespace: str) -> str:
    """Name of the lab that a namespace belongs to: ``fl-a-b-leaf0`` is of lab ``a-b``."""
    return namespace[len(PREFIX) + 1 :].rpartition("-")[0]


def names() -> list[str]:
    """Names of all labs that have a directory, or namespaces."""
    found = {p.name for p in ROOT.iterdir() if p.is_dir()} if ROOT.is_dir() else set()
    found |= {lab_of(n) for n in netns.listing(PREFIX + "-")}
    return sorted(n for n in found if n)


def ready(name: str) -> LabInfo:
    """The lab of that name.

    Raises:
        LabError: there is none, or its owner is gone.
    """
    info = load(name)
    if info is None:
        up = ", ".join(names()) or "none"
        raise LabError(f"no lab '{name}' (labs: {up}); start it with: ./run lab up --name {name}")
    if info.stale:
        raise LabError(f"lab '{name}' is stale: its owner is gone; remove it: ./run lab clean")
    if info.state != "ready":
        raise LabError(f"lab '{name}' is {info.state}")
    return info


@contextmanager
def lock() -> Iterator[None]:
    """Held while labs are claimed or cleaned, so that two starts do not fight."""
    ROOT.mkdir(parents=True, exist_ok=True)
    fd = os.open(ROOT / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def claim(topology: Topology) -> LabInfo:
    """Take the name for the calling process and make the lab's directory.

    Raises:
        LabError: a living process owns a lab of that name.
    """
    with lock():
        other = load(topology.name)
        if other is not None and not other.stale:
            raise LabError(
                f"lab '{topology.name}' is up (owner pid {other.owner.pid}); "
                f"take it down with: ./run lab down --name {topology.name}"
            )
        _clean_stale()
        netns.ready()
        remove(topology.name)
        info = LabInfo(topology, procs.myself(), "building")
        info.dir.root.mkdir(parents=True)
        info.save()
        return info


def clean_stale() -> list[str]:
    """Remove every lab whose owner is gone; their names."""
    with lock():
        return _clean_stale()


def _clean_stale() -> list[str]:
    cleaned = []
    for name in names():
        info = load(name)
        if info is None or info.stale:
            remove(name)
            cleaned.append(name)
    return cleaned


def release(name: str) -> None:
    """As `remove`, by the owner: nobody else takes what is half gone for a stale lab meanwhile."""
    with lock():
        remove(name)


def remove(name: str) -> None:
    """End the lab's processes, remove its namespaces and its directory, whatever is left of it.

    The caller holds `lock`.
    """
    where = LabDir(name)
    namespaces = [n for n in netns.listing(PREFIX + "-") if lab_of(n) == name]
    procs.end_all({*procs.recorded(where.pids), *procs.inhabitants(namespaces)})
    build.destroy_names(namespaces)
    if where.root.is_dir():
        shutil.rmtree(where.root)
