"""What is kept of NICs over a restart and a reboot. Pure.

A NIC that trains at fewer lanes after a boot than before it, or a link at a lower speed, is as slow
as one that fell back while it ran. That is of the NIC and not of its interface's name, so its
permanent address is kept, too. A count of flaps that was not exact once stays so, for the total
goes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fabricd.nics.monitor import PCIE, Nic
from fabricd.nics.speed import SOURCES

Document = dict[str, dict[str, Any]]


def save(nics: Mapping[str, Nic]) -> Document:
    """A JSON document for `restore`, by netdev."""
    kept: Document = {}
    for netdev, nic in nics.items():
        best = {f"{name}_max": nic.gauge(f"{name}_max") for name in PCIE}
        pcie = nic.pcie_had | {name: value for name, value in best.items() if value is not None}
        row: dict[str, object] = {"pcie": pcie or nic.pcie_kept, "speed": dict(nic.speed.best)}
        row["inexact"] = nic.downs.state.inexact
        row["hardware"] = nic.hardware
        kept[netdev] = {name: value for name, value in row.items() if value}
    return {netdev: row for netdev, row in kept.items() if row}


def restore(nics: Mapping[str, Nic], document: object) -> list[str]:
    """Take over what `save` gave; returns what was not usable."""
    if not isinstance(document, dict):
        return ["nics"]
    refused = []
    for netdev, nic in nics.items():
        row = document.get(netdev, {})
        row = row if isinstance(row, dict) else {"pcie": None}
        pcie, speed = row.get("pcie", {}), row.get("speed", {})
        inexact, hardware = row.get("inexact", ""), row.get("hardware", "")
        if not (
            _numbers(pcie, _PCIE) and _numbers(speed, frozenset(SOURCES))
            and isinstance(inexact, str) and isinstance(hardware, str)
        ):  # fmt: skip
            refused.append(f"nics {netdev}")
            continue
        # Another NIC may have the name by now: the first reading tells.
        nic.hardware = hardware
        nic.pcie_kept = dict(pcie)
        nic.speed.restore(speed)
        if inexact:
            nic.downs.inexact_before(inexact)
    return refused


_PCIE = frozenset((*PCIE, *(f"{name}_max" for name in PCIE)))


def _numbers(row: object, names: frozenset[str]) -> bool:
    """Whether it is an object of finite numbers, none below 0, with no other names."""
    return (
        isinstance(row, dict)
        and names >= row.keys()
        and all(
            isinstance(value, int | float) and not isinstance(value, bool)
            and math.isfinite(value) and value >= 0
            for value in row.values()
        )
    )  # fmt: skip
