"""Priority flow control and DSCP mapping, as ``mlnx_qos`` or iproute2's ``dcb`` print them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fabricd.doctor.facts import Qos, VerbsDevice
from fabricd.doctor.machine import Machine, ToolError
from fabricd.doctor.tree import Tree

_PRIORITIES = 8
_DCB_PFC = re.compile(r"prio-pfc((?:\s+[0-7]:(?:on|off)){8})")
_PAIR = re.compile(r"(\d{1,2}):(\d)\b")
_TRUST = re.compile(r"^Priority trust state:\s*(\w+)", re.MULTILINE)
_ENABLED = re.compile(
    r"^PFC configuration:.*?^\s*enabled((?:\s+[01]){8})", re.MULTILINE | re.DOTALL
)
_PRIORITY_ROW = re.compile(r"^\s*prio:(\d)\s+dscp:([\d,]+)", re.MULTILINE)


def settings(
    tree: Tree, machine: Machine, rails: Sequence[str], devices: Sequence[VerbsDevice]
) -> tuple[Qos, ...]:
    """Settings of each rail with a RoCE port in hardware; soft-RoCE has none."""
    roce = {
        name for device in devices if device.pci
        for port in device.ports if port.roce for name in port.netdevs
    }  # fmt: skip
    found = []
    for netdev in rails:
        if netdev not in roce:
            continue
        setting = _ask(tree, machine, netdev)
        found += [] if setting is None else [setting]
    return tuple(found)


def of_mlnx_qos(netdev: str, text: str) -> Qos | None:
    """What ``mlnx_qos -i NETDEV`` printed; None where it has no row of PFC."""
    enabled = _ENABLED.search(text)
    if enabled is None:
        return None
    trust = _TRUST.search(text)
    mapping = {
        int(dscp): int(priority)
        for priority, row in _PRIORITY_ROW.findall(text)
        for dscp in row.split(",") if dscp
    }  # fmt: skip
    pfc = tuple(word == "1" for word in enabled[1].split())
    return Qos(netdev, pfc, trust[1].lower() if trust else "", mapping, "mlnx_qos")


def of_dcb(netdev: str, pfc_text: str, app_text: str) -> Qos | None:
    """What ``dcb pfc show`` and ``dcb -N app show`` printed; None where there is no row of PFC.

    A mapping of DSCPs makes mlx5 trust them; without one it goes by the VLAN's priority (PCP).
    """
    match = _DCB_PFC.search(pfc_text)
    if match is None:
        return None
    pfc = [False] * _PRIORITIES
    for pair in match[1].split():
        number, _, word = pair.partition(":")
        pfc[int(number)] = word == "on"
    mapping: dict[int, int] = {}
    for line in app_text.splitlines():
        if line.strip().startswith("dscp-prio"):
            mapping |= {int(dscp): int(priority) for dscp, priority in _PAIR.findall(line)}
    return Qos(netdev, tuple(pfc), "dscp" if mapping else "pcp", mapping, "dcb")


def _ask(tree: Tree, machine: Machine, netdev: str) -> Qos | None:
    reasons = []
    try:
        if found := of_mlnx_qos(netdev, machine.run(["mlnx_qos", "-i", netdev])):
            return found
        reasons.append("mlnx_qos printed no PFC configuration")
    except ToolError as error:
        reasons.append(str(error))
    try:
        pfc = machine.run(["dcb", "pfc", "show", "dev", netdev])
        app = machine.run(["dcb", "-N", "app", "show", "dev", netdev])
        if found := of_dcb(netdev, pfc, app):
            return found
        reasons.append("dcb printed no PFC configuration")
    except ToolError as error:
        reasons.append(str(error))
    tree.note_unexamined(f"PFC and DSCP of {netdev}", "; ".join(reasons))
    return None
