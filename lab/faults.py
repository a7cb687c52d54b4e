"""All faults that can be injected into a lab, each with a start and an end.

Faults compose: several on one port at once, and the end of one is not the end of another
(``lab.holds`` for links and freezes, one nftables table per fault for packets).
"""

from lab.addressfault import AddressRemoved
from lab.fault import Direction, Fault, Site
from lab.flap import Flap
from lab.linkfaults import AdminDown, Carrier, LeafDown, SpineDown
from lab.nodefaults import NodeFreeze, NodeKill
from lab.packetfaults import BlackHole, Loss, ResetStorm

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
