"""What is kept of NICs over a restart and a reboot. Pure.

A NIC that trains at fewer lanes after a boot than before it is as slow as one that fell back while
it ran; and a count of flaps that was not exact once stays so, for the total goes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fabricd.nics.book import PCIE, Nic

Document = dict[str, dict[str, Any]]


def save(nics: Mapping[str, Nic]) -> Document:
    """A JSON document for `restore`, by netdev."""
    kept: Document = {}
    for netdev, nic in nics.items():
        best = {f"{name}_max": nic.gauge(f"{name}_max") for name in PCIE}
        pcie = nic.pcie_had | {name: value for name, value in best.items() if value is not None}
        row = {"pcie": pcie or nic.pcie_kept, "inexact": nic.downs.state.inexact}
        kept[netdev] = {name: value for name, value in row.items() if value}
    return {netdev: row for netdev, row in kept.items() if row}


def restore(nics: Mapping[str, Nic], document: object) -> list[str]:
    """Take over what `save` gave; returns what was not usable."""
    if not isinstance(document, dict):
        return ["nics"]
    refused = []
    for netdev, nic in nics.items():
        row = document.get(netdev, {})
        pcie = row.get("pcie", {}) if isinstance(row, dict) else None
        inexact = row.get("inexact", "") if isinstance(row, dict) else None
        if not isinstance(pcie, dict) or not isinstance(inexact, str) or not _numbers(pcie):
            refused.append(f"nics {netdev}")
            continue
        nic.pcie_kept = dict(pcie)
        if inexact:
            nic.downs.inexact_before(inexact)
    return refused


def _numbers(row: Mapping[str, object]) -> bool:
    names = {*PCIE, *(f"{name}_max" for name in PCIE)}
    return names >= row.keys() and all(
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        for value in row.values()
    )
