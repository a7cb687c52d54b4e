"""What is wrong with a value and what would be allowed, in words: pydantic's errors translated."""

from __future__ import annotations

from typing import Any

from fabricd.config_tables import (
    BrokerTable,
    ClockTable,
    Config,
    ControlTable,
    CountersTable,
    DampingTable,
    DetectorsTable,
    HoldTable,
    HostTable,
    LeafTable,
    LinkTable,
    MetricsTable,
    PathsTable,
    PeerAddressTable,
    PeerTable,
    PredictTable,
    ProbeTable,
    SteerTable,
    Table,
    TimelineTable,
    TopologyTable,
)


def dotted(path: tuple[str | int, ...]) -> str:
    """A path as it is written: ``links[0].rail``."""
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else f"{'.' if out else ''}{part}"
    return out or "(file)"


def explain(item: Any) -> tuple[tuple[str | int, ...], str]:  # noqa: ANN401 - pydantic's dict
    """One pydantic error as (path, text that says what is allowed)."""
    path = _real_path(tuple(item["loc"]))
    if item["type"] == "extra_forbidden":
        keys = ", ".join(_fields(path[:-1]))
        return path, f"unknown key; allowed here: {keys}"
    allowed = _allowed(path)
    if item["type"] == "missing":
        return path, f"missing; needed: {allowed}"
    return path, f"got {_short(item['input'])}; allowed: {allowed}"


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, str) else f'"{value}"'
    return text if len(text) <= 60 else text[:57] + "..."


def _real_path(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Pydantic's location without the names of union members."""
    out: tuple[str | int, ...] = ()
    for part in loc:
        value = _without_indices(out)
        if isinstance(part, str) and value and _model(value) is None:
            break  # Below a plain value, or one of a list of them, only union tags follow.
        out = (*out, part)
    return out


def _without_indices(path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    while path and isinstance(path[-1], int):
        path = path[:-1]
    return path


def _model(path: tuple[str | int, ...]) -> type[Table] | None:
    """The table class at a path; None for a plain value."""
    model: type[Table] | None = Config
    for part in path:
        if model is None:
            return None
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        model = _TABLES.get((model, part)) if field else None
    return model


_TABLES: dict[tuple[type[Table], str], type[Table]] = {
    (Config, "host"): HostTable,
    (Config, "paths"): PathsTable,
    (Config, "probe"): ProbeTable,
    (Config, "links"): LinkTable,
    (Config, "peers"): PeerTable,
    (Config, "topology"): TopologyTable,
    (TopologyTable, "leaves"): LeafTable,
    (Config, "damping"): DampingTable,
    (Config, "hold"): HoldTable,
    (Config, "steer"): SteerTable,
    (Config, "counters"): CountersTable,
    (Config, "predict"): PredictTable,
    (Config, "detectors"): DetectorsTable,
    (Config, "clock"): ClockTable,
    (Config, "broker"): BrokerTable,
    (Config, "control"): ControlTable,
    (Config, "metrics"): MetricsTable,
    (Config, "timeline"): TimelineTable,
    (PeerTable, "addresses"): PeerAddressTable,
}


def _fields(path: tuple[str | int, ...]) -> list[str]:
    model = _model(path)
    return list(model.model_fields) if model else []


def _allowed(path: tuple[str | int, ...]) -> str:
    if path and isinstance(path[-1], int) and _model(path) is not None:
        return f"a table with the keys {', '.join(_fields(path))}"
    path = _without_indices(path)  # of an element of a list of plain values
    owner, key = _model(path[:-1]), path[-1] if path else ""
    if owner is not None and key in owner.model_fields:
        field = owner.model_fields[str(key)]
        if field.description:
            return field.description
        if (owner, key) == (LinkTable, "address"):
            return 'a unicast IPv4 or IPv6 address as text, e.g. "10.0.0.1" or "fd00::1"'
        if _model(path) is not None:
            return f"a table with the keys {', '.join(_fields(path))}"
    return "see docs/architecture.md"
