"""fabricd.toml of a lab's host. Pure: from the topology to the text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.topology import Topology

Table = dict[str, Any]


def host_config(
    topology: Topology,
    host: int,
    *,
    run_dir: Path,
    state_dir: Path,
    stop_file: Path,
    key_file: Path,
    overrides: Mapping[str, Any] | None = None,
) -> Table:
    """The configuration as a tree; ``overrides`` are tables merged into it key by key."""
    tree: Table = {
        "host": {"name": f"h{host}"},
        "paths": {
            "run_dir": str(run_dir),
            "state_dir": str(state_dir),
            "stop_file": str(stop_file),
        },
        "probe": {"key_file": str(key_file)},
        # Faults of a lab come much faster than in life: links may return again and again.
        "damping": {"max_transitions": 0},
        "links": [
            {"netdev": f"rail{r}", "rail": r, "address": topology.address4(host, r)}
            for r in range(topology.rails)
        ],
        "peers": [
            {
                "host": f"h{i}",
                "addresses": [
                    {"rail": r, "address": topology.address4(i, r)} for r in range(topology.rails)
                ],
            }
            for i in range(topology.hosts)
            if i != host
        ],
    }
    if topology.rail_only:
        tree["probe"]["cross_rail_peers"] = 0
    return merge(tree, overrides or {})


def merge(base: Table, extra: Mapping[str, Any]) -> Table:
    """``base`` with ``extra`` laid over it; tables merge, everything else is replaced."""
    result = dict(base)
    for key, value in extra.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            result[key] = merge(old, value)
        else:
            result[key] = value
    return result


def to_toml(tree: Table) -> str:
    """TOML text of a tree of tables, arrays of tables and plain values."""
    lines: list[str] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            lines += [f"[{key}]", *_pairs(value), ""]
        elif isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
            for item in value:
                lines += [f"[[{key}]]", *_pairs(item), ""]
        else:
            lines.insert(0, f"{key} = {_value(value)}")
    return "\n".join(lines)


def _pairs(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in table.items()]


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, list):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_pairs(value)) + " }"
    raise TypeError(f"no TOML for {type(value).__name__}")
