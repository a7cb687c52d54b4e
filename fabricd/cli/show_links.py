"""``fabricctl links``: the worst link first, in words that fit a terminal. Pure but for printing.

Every function takes the JSON of the control socket.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from fabricd.cli.show import age, condition, queues, state
from fabricd.cli.tables import table

Link = dict[str, Any]

WORST_FIRST = ("down", "hold", "degraded", "unknown", "suspect", "probation", "up", "admin")
"""States. One that an operator asked for is the last: nobody has to act."""
COLUMNS = ("link", "state", "for", "weight", "flaps", "why")
WIDE_COLUMNS = (
    "link", "rail", "state", "for", "weight", "carrier", "flaps", "in 1 h", "penalty", "risk",
    "rtt", "queue tx/rx", "lost tx/rx", "condition", "address", "mode", "plugged into", "why",
)  # fmt: skip
PATH_COLUMNS = ("path", "state", "rtt", "queue tx/rx", "address")
LEFT = "state condition address mode"


def links(data: Iterable[Link], *, wide: bool = False) -> Table:
    """The table of links."""
    ordered = sorted(data, key=_rank)
    if wide:
        rows: list[Sequence[Text | str]] = [_wide(link) for link in ordered]
        left = f"{LEFT} plugged into"
        return table(WIDE_COLUMNS, rows, left=left)
    return table(COLUMNS, [_narrow(link) for link in ordered], left=LEFT)


def paths(data: Iterable[Link]) -> Table:
    """The table of all links' paths."""
    found = [(link, path) for link in data for path in link["paths"]]
    found.sort(key=lambda one: (_place(one[1]["state"]), bool(one[1].get("heard", True)),
                                one[0]["netdev"], one[1]["peer"], one[1]["peer_rail"]))  # fmt: skip
    rows = [
        (
            f"{link['netdev']} → {path['peer']}/{path['peer_rail']}",
            state(path["state"]),
            _us(path["rtt_us"]),
            queues(path["delay"]),
            path["address"] + (f" ({why})" if (why := _silence(path)) else ""),
        )
        for link, path in found
    ]
    return table(PATH_COLUMNS, rows, left=LEFT)


def plugged(data: Iterable[Link]) -> list[str]:
    """Where LLDP says that links are plugged in, a sentence for each."""
    return [
        f"{link['netdev']} is plugged into {link['leaf']} {link['leaf_port']}".rstrip()
        for link in data
        if link.get("leaf") and link.get("leaf_port")
    ]


def why(link: Link) -> str:
    """What there is to say of a link, the worst first."""
    parts = ["" if link["state"] == "up" else link["reason"]]
    if link["condition"] in ("congested", "slow", "broken"):
        parts.append(link["condition"])
    if size := link.get("mtu_black_hole"):
        parts.append(str(size))
    parts.append(link.get("unwatched", ""))
    if link.get("named"):
        parts.append(f"may fail soon: risk {link['risk']:.2f}")
    if link.get("flaps_last_hour") and link["flaps"]:
        times = link["flaps_last_hour"]
        parts.append(f"{times} flap{'s' if times != 1 else ''} in the last hour")
    if link.get("maintenance"):
        parts.append("maintenance")
    return "; ".join(part for part in parts if part)


def _place(name: str) -> int:
    return WORST_FIRST.index(name) if name in WORST_FIRST else 0


def _rank(link: Link) -> tuple[Any, ...]:
    return (
        _place(link["state"]),
        link["condition"] not in ("congested", "slow", "broken"),
        not (link.get("unwatched") or link.get("named") or link.get("mtu_black_hole")),
        -link.get("flaps_last_hour", 0),
        link["netdev"],
    )


def _flaps(link: Link) -> str:
    return str(link["flaps"]) + ("" if link.get("flaps_exact", True) is not False else "+")


def _narrow(link: Link) -> tuple[Text | str, ...]:
    return (
        link["netdev"],
        state(link["state"]),
        age(link["since_s"]),
        f"{100 * link['weight']:.0f} %",
        _flaps(link),
        why(link) or "-",
    )


def _wide(link: Link) -> tuple[Text | str, ...]:
    probes = link["probes"]
    return (
        link["netdev"],
        str(link["rail"]),
        state(link["state"]),
        age(link["since_s"]),
        f"{100 * link['weight']:.0f} %",
        {True: "yes", False: "no", None: "?"}[link["carrier"]],
        _flaps(link),
        str(link.get("flaps_last_hour", "-")),
        f"{link['penalty']:.0f}" + ("!" if link["suppressed"] else ""),
        "-" if link.get("risk") is None else f"{link['risk']:.2f}",
        _us(link["rtt_us"]),
        queues(link["delay"]),
        f"{probes['lost_tx']}/{probes['lost_rx']}",
        condition(link["condition"]),
        link.get("address") or "-",
        link.get("mode", "-"),
        f"{link.get('leaf') or '-'} {link.get('leaf_port') or ''}".rstrip(),
        why(link) or "-",
    )


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} µs"


def _silence(path: Link) -> str:
    if path.get("gone"):
        return "bye"
    return "" if path.get("heard", True) else "silent"
