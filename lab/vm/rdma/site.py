"""Directory and site of a guest lab: what `lab.fault` asks of any lab."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lab.fault import Site
from lab.registry import LabDir
from lab.vm import machine

if TYPE_CHECKING:
    from lab.vm.rdma.lab import GuestLab


@dataclass(frozen=True, slots=True)
class GuestDir(LabDir):
    """As that of a lab of namespaces, beside the directories of the machines."""

    @property
    def root(self) -> Path:
        """``/run/fabric-vm/labs/<lab>``."""
        return machine.RUN / "labs" / self.name

    @property
    def socket(self) -> Path:
        """Where the lab's owner answers."""
        return self.root / "owner.sock"


@dataclass(frozen=True, slots=True)
class GuestSite(Site):
    """Where a fault is injected: a lab whose hosts are guests."""

    guests: GuestLab
