"""Which of a device's addresses a link's probes leave from. Pure.

The rules are those of the plugin (nccl_plugin/host/address_choice.h), and both are tested with the
cases of tests/unit/shared/rail_cases.json:

1. The address in use stays for as long as the device has it, deprecated or not; an IPv6 one until
   there is an IPv4 one.
2. Usable is what is neither tentative, nor failed duplicate address detection (DAD), nor
   deprecated, nor temporary (RFC 8981).
3. IPv4 before IPv6. Of several IPv4 addresses the kernel's first that is not secondary; of several
   IPv6 addresses the lowest, and that is said.
4. A link-local address counts only where it is asked for, and after all others.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

IFA_F_SECONDARY = IFA_F_TEMPORARY = 0x01  # linux/if_addr.h: of IPv4, of IPv6
IFA_F_OPTIMISTIC = 0x04
IFA_F_DADFAILED = 0x08
IFA_F_DEPRECATED = 0x20
IFA_F_TENTATIVE = 0x40
RT_SCOPE_LINK = 253  # linux/rtnetlink.h

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class DeviceAddress:
    """One address of a device, as rtnetlink says it."""

    text: str
    flags: int = 0
    """IFA_F_*."""
    scope: int = 0
    """RT_SCOPE_*; 0: global."""


@dataclass(frozen=True, slots=True)
class AddressChoice:
    """The address that is used, and what there is to say of the choice.

    Attributes:
        address: None: none is usable.
        note: why there is none, or which others there are; may be empty.
    """

    address: str | None
    note: str = ""


def choose_address(
    addresses: Iterable[DeviceAddress],
    *,
    version: int | None = None,
    asked: bool = False,
    current: str | None = None,
) -> AddressChoice:
    """The address that a link uses.

    Args:
        addresses: of its device, in the kernel's order.
        version: 4 or 6: of that family alone.
        asked: link-local addresses count, too.
        current: the address in use; None: none yet.
    """
    v4: list[DeviceAddress] = []
    v6: list[IpAddress] = []
    local: list[IpAddress] = []
    kept: IpAddress | None = None
    faults = []
    for each in addresses:
        address = ipaddress.ip_address(each.text)
        if version not in (None, address.version):
            continue
        if each.text == current and not _unproved(address, each.flags):
            kept = address
        elif fault := _fault(address, each.flags):
            faults.append(f"{each.text} {fault}")
        elif address.is_link_local or each.scope == RT_SCOPE_LINK:
            local.append(address)
        elif address.version == 4:
            v4.append(each)
        else:
            v6.append(address)
    if kept is not None and kept.version == 4:
        return AddressChoice(str(kept))
    if kept is not None and not v4:
        return AddressChoice(str(kept)) if kept.is_link_local else _of_several(kept, [*v6, kept])
    if v4:
        primary = (each.text for each in v4 if not each.flags & IFA_F_SECONDARY)
        return AddressChoice(next(primary, v4[0].text))
    if v6:
        return _of_several(min(v6, key=int), v6)
    # IPv4 first, in the kernel's order.
    local.sort(key=lambda a: (a.version, int(a) if a.version == 6 else 0))
    if local and asked:
        return AddressChoice(str(local[0]))
    if local:
        faults.append(f"{', '.join(map(str, local))} is link-local")
    family = f"IPv{version} " if version else ""
    return AddressChoice(None, ", ".join(faults) or f"has no {family}address")


def _of_several(chosen: IpAddress, usable: list[IpAddress]) -> AddressChoice:
    names = ", ".join(map(str, sorted(usable, key=int)))
    return AddressChoice(str(chosen), f"has {names}: {chosen} is used" if len(usable) > 1 else "")


def _unproved(address: IpAddress, flags: int) -> bool:
    """Whether the kernel takes no packets for it (yet)."""
    tentative = flags & IFA_F_TENTATIVE and not flags & IFA_F_OPTIMISTIC
    return address.version == 6 and bool(tentative or flags & IFA_F_DADFAILED)


def _fault(address: IpAddress, flags: int) -> str:
    """Why an address is not chosen; empty: it may be."""
    if address.version == 4:
        return ""
    if flags & IFA_F_DADFAILED:
        return "is a duplicate (DAD failed)"
    if _unproved(address, flags):
        return "is tentative"
    if flags & IFA_F_DEPRECATED:
        return "is deprecated"
    return "is temporary" if flags & IFA_F_TEMPORARY else ""
