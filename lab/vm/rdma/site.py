"""Directory, site and fault of a guest lab: what `lab.faults.base` asks of any lab."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from lab.faults.base import Fault, Site
from lab.lifecycle.registry import LabDir
from lab.vm import machine

Guests = TypeVar("Guests")


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
class GuestSite(Site, Generic[Guests]):
    """Where a fault is injected: a lab whose hosts are guests.

    Attributes:
        guests: the lab.
    """

    guests: Guests


class TrackedFault(Fault):
    """A fault whose lab knows whether it is in force."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.injected = False
        """Whether it is in force."""
