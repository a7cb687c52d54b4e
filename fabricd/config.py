"""The configuration: a TOML file and its overrides (``conf.d``), validated as a whole.

`load` either returns a frozen `Config` or raises `ConfigError` with *every* problem found, each
with file, line, key and what is allowed. What the keys mean is in docs/architecture.md.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import socket
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fabricd import config_checks
from fabricd.config_files import Layers, override_files
from fabricd.operate.detectors import DETECTORS
from fabricd.pinning import parse_cpus

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a configuration file."""

    file: str
    line: int
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.key}: {self.text}"


class ConfigError(Exception):
    """The configuration cannot be used. ``problems`` has all, in order of file and line."""

    def __init__(self, problems: list[Problem]) -> None:
        files = list(dict.fromkeys(p.file for p in problems))
        self.problems = sorted(problems, key=lambda p: (files.index(p.file), p.line, p.key))
        super().__init__("\n".join(str(p) for p in self.problems))


def _unicast(value: object) -> Address:
    if not isinstance(value, str):
        raise ValueError("not text")
    address = ipaddress.ip_address(value)
    if address.is_multicast or address.is_unspecified:
        raise ValueError("not an address of one host")
    return address


UnicastAddress = Annotated[
    Address,
    BeforeValidator(_unicast),
    Field(description='a unicast IPv4 or IPv6 address as text, e.g. "10.0.0.1" or "fd00::1"'),
]
Netdev = Annotated[
    str,
    Field(
        pattern=r"^[^\s/:]{1,15}$",
        description="a network interface name, 1 to 15 characters without space, / and :",
    ),
]
Rail = Annotated[int, Field(ge=0, le=31, strict=True, description="an integer from 0 to 31")]
HostName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$",
        description="a host name: 1 to 253 letters, digits, '.', '-' and '_'",
    ),
]
FilePath = Annotated[
    str, Field(pattern=r"^/", max_length=4096, description="an absolute path as text")
]


GroupName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9_-]{0,30}[a-z0-9])?$")]
SystemGroup = Annotated[
    str,
    Field(
        pattern=r"^(|[a-z_][a-z0-9_-]{0,30})$",
        description='the name of a group of this system, or "" for none',
    ),
]


def _cpus(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not text")
    parse_cpus(value)
    return value


Cpus = Annotated[
    str,
    BeforeValidator(_cpus),
    Field(description='CPUs such as "0-1,8", "housekeeping", or "" to leave them alone'),
]


def _detector(value: object) -> str:
    if value not in DETECTORS:
        raise ValueError("not a detector")
    return str(value)


Detector = Annotated[str, BeforeValidator(_detector)]


def _integer(low: int, high: int, unit: str = "") -> Any:  # noqa: ANN401
    text = f"an integer from {low} to {high}{unit and ' ' + unit}"
    return Field(ge=low, le=high, strict=True, description=text)


def _number(low: float, high: float, unit: str = "") -> Any:  # noqa: ANN401
    return Field(
        ge=low, le=high, allow_inf_nan=False,
        description=f"a number from {low:g} to {high:g}{unit and ' ' + unit}",
    )  # fmt: skip


def _plain_number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")
    return value


Number = Annotated[float, BeforeValidator(_plain_number)]


def _no_limit_or_three(value: int) -> int:
    if value in (1, 2):
        raise ValueError("a link that went out could never return")
    return value


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HostTable(_Table):
    """This host."""

    name: HostName = Field(default_factory=socket.gethostname)
    cpus: Cpus = ""


class PathsTable(_Table):
    """Where things lie."""

    run_dir: FilePath = "/run/fabricd"
    state_dir: FilePath = "/var/lib/fabricd"
    stop_file: FilePath = "/etc/fabricd/STOP"


class ProbeTable(_Table):
    """Probing."""

    link_interval_ms: Annotated[int, _integer(1, 10_000, "(milliseconds)")] = 10
    misses: Annotated[int, _integer(2, 100)] = 3
    port: Annotated[int, _integer(1, 65535)] = 9200
    peers_per_rail: Annotated[int, _integer(1, 64)] = 10
    cross_rail_peers: Annotated[int, _integer(0, 16)] = 1
    clock_train_hz: Annotated[int, _integer(0, 1000, "(trains a second; 0: none)")] = 100
    key_file: FilePath = "/etc/fabricd/probe.key"


class LinkTable(_Table):
    """One local link."""

    netdev: Netdev
    rail: Rail
    address: UnicastAddress | None = None
    group: GroupName | None = Field(
        default=None, description="a group's name: 1 to 32 lower-case letters, digits, '-' and '_'"
    )


class PeerAddressTable(_Table):
    """One address of a peer."""

    rail: Rail
    address: UnicastAddress


class PeerTable(_Table):
    """One peer host."""

    host: HostName
    addresses: Annotated[
        tuple[PeerAddressTable, ...],
        Field(min_length=1, max_length=64, description="1 to 64 tables { rail, address }"),
    ]


class DampingTable(_Table):
    """Flap damping."""

    penalty: Annotated[Number, _number(1, 1e6)] = 1000.0
    half_life_s: Annotated[Number, _number(0.1, 86_400, "(seconds)")] = 15.0
    suppress: Annotated[Number, _number(1, 1e9)] = 2500.0
    reuse: Annotated[Number, _number(1, 1e9)] = 1000.0
    max_suppress_s: Annotated[Number, _number(0.1, 86_400, "(seconds)")] = 60.0
    second_tier_flaps: Annotated[int, _integer(1, 1_000_000, "(flaps an hour)")] = 50
    window_s: Annotated[Number, _number(1, 86_400, "(seconds)")] = 600.0
    max_transitions: Annotated[
        int,
        Field(ge=0, le=1000, strict=True, description="0 (no limit), or an integer from 3 to 1000"),
        AfterValidator(_no_limit_or_three),
    ] = 3


class HoldTable(_Table):
    """Times of the way back."""

    hold_down_s: Annotated[Number, _number(0.01, 3600, "(seconds)")] = 2.0
    probation_s: Annotated[Number, _number(0, 3600, "(seconds)")] = 10.0


class SteerTable(_Table):
    """Limits of steering."""

    max_probe_share: Annotated[Number, _number(0, 1)] = 0.5


class DetectorsTable(_Table):
    """Kill switches."""

    off: Annotated[
        tuple[Detector, ...],
        Field(description=f"a list of detectors, out of: {', '.join(DETECTORS)}"),
    ] = ()


class ControlTable(_Table):
    """Who may use the control socket."""

    read_group: SystemGroup = "fabricd"
    admin_group: SystemGroup = "fabricd-admin"


class MetricsTable(_Table):
    """Prometheus endpoint."""

    listen: Annotated[
        str,
        Field(
            pattern=r"^(|(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):\d{1,5})$",
            description='"HOST:PORT", "[IPv6]:PORT", or "" for no endpoint',
        ),
    ] = "127.0.0.1:9464"


class TimelineTable(_Table):
    """Retention of the timeline."""

    retention_days: Annotated[Number, _number(0.01, 36_500, "(days)")] = 90.0
    max_mb: Annotated[Number, _number(1, 1e6, "(megabytes)")] = 512.0


class Config(_Table):
    """A whole valid configuration."""

    host: HostTable = Field(default_factory=HostTable)
    paths: PathsTable = Field(default_factory=PathsTable)
    probe: ProbeTable = Field(default_factory=ProbeTable)
    links: Annotated[
        tuple[LinkTable, ...],
        Field(min_length=1, max_length=32, description="1 to 32 tables [[links]]"),
    ]
    peers: Annotated[
        tuple[PeerTable, ...], Field(max_length=4096, description="up to 4096 tables [[peers]]")
    ] = ()
    damping: DampingTable = Field(default_factory=DampingTable)
    hold: HoldTable = Field(default_factory=HoldTable)
    steer: SteerTable = Field(default_factory=SteerTable)
    detectors: DetectorsTable = Field(default_factory=DetectorsTable)
    control: ControlTable = Field(default_factory=ControlTable)
    metrics: MetricsTable = Field(default_factory=MetricsTable)
    timeline: TimelineTable = Field(default_factory=TimelineTable)


def load(path: Path | str) -> Config:
    """Read and validate a file and its overrides.

    Raises:
        ConfigError: with every problem; also when a file cannot be read.
    """
    main = Path(path)
    problems: list[Problem] = []
    files = [main]
    try:
        files += override_files(main)
    except OSError as error:
        where = str(error.filename or main.parent)
        problems.append(Problem(where, 0, "(file)", f"cannot be listed: {error.strerror}"))
    texts: list[tuple[str, str]] = []
    for file in files:
        try:
            texts.append((str(file), file.read_text(encoding="utf-8")))
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
            problems.append(Problem(str(file), 0, "(file)", what))
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            what = "not UTF-8; allowed: a TOML file in UTF-8"
            problems.append(Problem(str(file), line, "(file)", what))
    return _validate(texts, problems)


def parse(text: str, file: str) -> Config:
    """Validate one text; ``file`` is its name for the messages.

    Raises:
        ConfigError: with every problem found.
    """
    return _validate([(file, text)], [])


def files_of(path: Path | str) -> list[str]:
    """The files that `load` reads, in order."""
    return [str(path), *map(str, override_files(Path(path)))]


def config_hash(config: Config) -> str:
    """16 hexadecimal digits that stand for the configuration in effect, defaults included."""
    return _digest(config.model_dump(mode="json"))


def policy_hash(config: Config) -> str:
    """The same of what hosts of one fabric should have in common: not hosts, links and paths."""
    return _digest(config.model_dump(mode="json", exclude={"host", "links", "peers", "paths"}))


def _digest(document: dict[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _validate(texts: list[tuple[str, str]], problems: list[Problem]) -> Config:
    layers = Layers()
    for file, text in texts:
        try:
            layers.lay(file, tomllib.loads(text), text)
        except tomllib.TOMLDecodeError as error:
            problems.append(_syntax(str(error), text, file))
    if problems:  # Half a configuration would be judged wrongly.
        raise ConfigError(problems)
    found: list[tuple[tuple[str | int, ...], str]] = []
    config = None
    try:
        config = Config.model_validate(layers.raw)
    except ValidationError as error:
        found += [_explain(item) for item in error.errors(include_url=False)]
    found += config_checks.check(layers.raw, local_host=raw_host(layers.raw))
    # A union reports each of its members: one line per key is enough.
    seen: dict[tuple[str, str], Problem] = {}
    for path, what in found:
        key = _dotted(path)
        seen.setdefault((key, what), Problem(*layers.origin(path), key, what))
    if seen or config is None:
        in_order = sorted(seen.values(), key=lambda p: layers.files.index(p.file))
        raise ConfigError(in_order)
    return config


def raw_host(raw: dict[str, Any]) -> str:
    """The host's name in unvalidated data, or this machine's."""
    table = raw.get("host")
    name = table.get("name") if isinstance(table, dict) else None
    return name if isinstance(name, str) else socket.gethostname()


def _syntax(message: str, text: str, file: str) -> Problem:
    match = re.search(r"\(at line (\d+), column \d+\)", message)
    line = int(match.group(1)) if match else text.count("\n") + 1
    what = re.sub(r" \(at .*\)$", "", message)
    return Problem(file, line, "(syntax)", f"{what}; allowed: TOML 1.0")


def _dotted(path: tuple[str | int, ...]) -> str:
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else f"{'.' if out else ''}{part}"
    return out or "(file)"


def _explain(item: Any) -> tuple[tuple[str | int, ...], str]:  # noqa: ANN401 - pydantic's dict
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
        if isinstance(part, str) and out and _model(out) is None and _model(out[:-1]) is not None:
            break  # Below a plain value only union tags follow.
        out = (*out, part)
    return out


def _model(path: tuple[str | int, ...]) -> type[_Table] | None:
    """The table class at a path; None for a plain value."""
    model: type[_Table] | None = Config
    for part in path:
        if model is None:
            return None
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        model = _TABLES.get((model, part)) if field else None
    return model


_TABLES: dict[tuple[type[_Table], str], type[_Table]] = {
    (Config, "host"): HostTable,
    (Config, "paths"): PathsTable,
    (Config, "probe"): ProbeTable,
    (Config, "links"): LinkTable,
    (Config, "peers"): PeerTable,
    (Config, "damping"): DampingTable,
    (Config, "hold"): HoldTable,
    (Config, "steer"): SteerTable,
    (Config, "detectors"): DetectorsTable,
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
    while path and isinstance(path[-1], int):  # An element of a list of plain values.
        path = path[:-1]
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
