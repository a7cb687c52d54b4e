"""All faults that can be injected into a lab, each with a start and an end.

Faults compose: several on one port at once, and the end of one is not the end of another
(``lab.faults.holds`` for links and freezes, one nftables table per fault for packets).
"""

from lab.faults.addresses import AddressRemoved
from lab.faults.base import Direction, Fault, Site
from lab.faults.flap import Flap
from lab.faults.hosts import NodeFreeze, NodeKill
from lab.faults.packets import BlackHole, Loss, ResetStorm
from lab.faults.ports import AdminDown, Carrier, LeafDown, SpineDown

__all__ = [
    "AddressRemoved",
    "AdminDown",
    "BlackHole",
    "Carrier",
    "Direction",
    "Fault",
    "Flap",
    "LeafDown",
    "Loss",
    "NodeFreeze",
    "NodeKill",
    "ResetStorm",
    "Site",
    "SpineDown",
]
