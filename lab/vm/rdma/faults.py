"""All faults of a guest lab by their words on the command line."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from lab.topology import TopologyError
from lab.vm.rdma import hostfaults, linkfaults, packetfaults
from lab.vm.rdma.fault import GuestFault
from lab.vm.rdma.hostfaults import (
    Frozen,
    HostDown,
    Killed,
    ModuleReloaded,
    Paused,
    Rebooted,
    RxeRemoved,
    Unplugged,
)
from lab.vm.rdma.linkfaults import (
    AddressRemoved,
    AdminDown,
    Carrier,
    Flap,
    GidMoved,
    LeafDown,
    Mtu,
)
from lab.vm.rdma.packetfaults import AckDrop, BlackHole, IpDrop, Loss, Netem, RoceDrop
from lab.vm.rdma.registry import Kind

__all__ = [
    "AckDrop",
    "AddressRemoved",
    "AdminDown",
    "BlackHole",
    "Carrier",
    "Flap",
    "Frozen",
    "GidMoved",
    "HostDown",
    "IpDrop",
    "Killed",
    "LeafDown",
    "Loss",
    "ModuleReloaded",
    "Mtu",
    "Netem",
    "Paused",
    "Rebooted",
    "RoceDrop",
    "RxeRemoved",
    "Unplugged",
    "known",
    "make",
]

_MODULES = (linkfaults, packetfaults, hostfaults)


def known(lab: Kind) -> dict[str, type[GuestFault]]:
    """Faults that a kind of lab can do, by their word."""
    items = [item for module in _MODULES for item in vars(module).values()]
    found = [item for item in items if isinstance(item, type) and issubclass(item, GuestFault)]
    able = [item for item in found if not inspect.isabstract(item) and hasattr(item, "kind")]
    return {item.kind: item for item in sorted(able, key=_word) if lab in item.kinds}


def _word(fault: type[GuestFault]) -> str:
    return fault.kind


def make(lab: Kind, kind: str, target: str, parameters: Mapping[str, object]) -> GuestFault:
    """The fault ``kind`` of ``target``; ``parameters`` are further arguments by name.

    Raises:
        TopologyError: this kind of lab has no such fault, or it takes no such parameter.
    """
    faults = known(lab)
    if kind not in faults:
        raise TopologyError(f"no fault '{kind}' in a lab of kind {lab}: {', '.join(faults)}")
    accepted = [name for name in inspect.signature(faults[kind]).parameters if name != "target"]
    for name in parameters:
        if name not in accepted:
            takes = ", ".join(accepted) or "no parameters"
            raise TopologyError(f"fault {kind} has no parameter '{name}': it takes {takes}")
    return faults[kind](target, **parameters)
