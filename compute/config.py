"""``/etc/fabricd/compute.toml``: one TOML file, validated as a whole.

``load`` returns a frozen ``Config`` or raises ``ConfigError`` with *every* problem that it finds.
``docs/reference/compute.md`` lists the keys.
"""

from __future__ import annotations

import socket
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from telemetry.broker.settings import BrokerSettings, needs_tls
from telemetry.messages.topics import DEFAULT_PREFIX
from telemetry.service import durable
from telemetry.service.config_errors import (
    ConfigError,
    Problem,
    Table,
    dotted,
    explain,
    syntax_problem,
)
from telemetry.service.config_values import (
    FilePath,
    HostName,
    Listen,
    Number,
    integer,
    name_problem,
    number,
)
from telemetry.service.toml_lines import Path as Key
from telemetry.service.toml_lines import key_lines, line_of
from telemetry.service.toml_text import read_toml

DEFAULT_FILE = Path("/etc/fabricd/compute.toml")
DEFAULT_LISTEN = "127.0.0.1:19201"
REFERENCE = "docs/reference/compute.md"
MAX_BYTES = 16 * 1024 * 1024
"""Of the file."""

Argument = Annotated[str, Field(min_length=1, max_length=4096)]
RecordKind = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]


class BrokerTable(Table):
    """Where the broker is, and how to prove to it who we are."""

    host: Annotated[
        str, Field(pattern=r"^[^\s/]{1,253}$", description="a host name or an IP address")
    ]
    port: Annotated[int, integer(0, 65535, "(0: 8883 with TLS, 1883 without)")] = 0
    ca_file: FilePath | None = None
    cert_file: FilePath | None = None
    key_file: FilePath | None = None
    username: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        default=None, description="1 to 256 characters"
    )
    password_file: FilePath | None = None
    prefix: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$", max_length=256,
            description='levels of a topic, e.g. "fabric/v1"',
        ),
    ] = DEFAULT_PREFIX  # fmt: skip
    protocol: Annotated[Literal["3.1.1", "5"], Field(description='"3.1.1" or "5"')] = "5"
    keepalive_s: Annotated[int, integer(1, 600, "(seconds)")] = 5

    @property
    def settings(self) -> BrokerSettings:
        """As the client takes it."""
        return BrokerSettings(
            host=self.host, port=self.port, prefix=self.prefix, protocol=self.protocol,
            keepalive_s=self.keepalive_s, ca_file=_path(self.ca_file),
            cert_file=_path(self.cert_file), key_file=_path(self.key_file),
            username=self.username or "", password_file=_path(self.password_file),
        )  # fmt: skip


class PolicyTable(Table):
    """The limits of all decisions: the fields of ``compute.decide.policy.Policy``."""

    min_observers: Annotated[int, integer(1, 64, "(hosts)")] = 2
    away_s: Annotated[Number, number(0.1, 3600, "(seconds)")] = 3.0
    flaps: Annotated[int, integer(2, 64)] = 5
    flap_window_s: Annotated[Number, number(1, 3600, "(seconds)")] = 30.0
    deaf_s: Annotated[Number, number(1, 3600, "(seconds)")] = 10.0
    untold_s: Annotated[Number, number(1, 3600, "(seconds)")] = 15.0
    formation_wait_s: Annotated[Number, number(0, 86_400, "(seconds)")] = 60.0
    late_s: Annotated[Number, number(1, 86_400, "(seconds)")] = 600.0
    answer_s: Annotated[Number, number(0.1, 3600, "(seconds)")] = 30.0
    accept_s: Annotated[Number, number(0.1, 3600, "(seconds)")] = 5.0
    recovery_s: Annotated[Number, number(1, 86_400, "(seconds)")] = 120.0
    suspicion_s: Annotated[Number, number(0.1, 3600, "(seconds)")] = 5.0
    recoveries_without_progress: Annotated[int, integer(1, 1000)] = 5
    starts: Annotated[int, integer(1, 1000)] = 3
    budget_window_s: Annotated[Number, number(1, 604_800, "(seconds)")] = 600.0
    budget_percent: Annotated[Number, number(0, 100, "(percent of all hosts)")] = 10.0
    budget_least: Annotated[int, integer(0, 100_000, "(hosts)")] = 2
    budget_most: Annotated[int, integer(0, 100_000, "(hosts)")] = 16
    rack_hosts: Annotated[int, integer(2, 100_000, "(hosts)")] = 3
    rack_window_s: Annotated[Number, number(0.1, 3600, "(seconds)")] = 2.0
    slow_percent: Annotated[Number, number(1, 1000, "(percent)")] = 8.0


class MaintenanceTable(Table):
    """Nothing is decided over these hosts, from ``begin`` until ``end``."""

    hosts: Annotated[
        tuple[HostName, ...], Field(min_length=1, max_length=4096, description="host names")
    ]
    begin: Annotated[
        datetime | None, Field(description="a TOML date and time with its offset from UTC")
    ] = None
    end: Annotated[
        datetime | None, Field(description="a TOML date and time with its offset from UTC")
    ] = None
    reason: Annotated[
        str, Field(max_length=2000, description="a text of at most 2000 characters")
    ] = ""

    def holds(self, wall: datetime) -> bool:
        """Whether ``wall`` (with a zone) is in the window."""
        return (self.begin is None or self.begin <= wall) and (self.end is None or wall < self.end)


class MetricsTable(Table):
    """The endpoint for Prometheus."""

    listen: Listen = DEFAULT_LISTEN


class LedgerTable(Table):
    """The signed heads of the ledger."""

    head_s: Annotated[Number, number(1, 86_400, "(seconds between two signed heads)")] = 60.0
    key_file: FilePath | None = None
    """The private key; default ``{state_dir}/ledger.key``, made where there is none."""


class ExecTable(Table):
    """The ``exec`` engine: a command of the site."""

    command: Annotated[
        tuple[Argument, ...],
        Field(
            min_length=1, max_length=64,
            description='a list of texts, the first an absolute path: ["/usr/local/bin/fence"]',
        ),
    ]  # fmt: skip
    on: Annotated[
        tuple[RecordKind, ...],
        Field(min_length=1, max_length=64, description='a list such as ["fence", "recovery"]'),
    ] = ("fence",)
    timeout_s: Annotated[Number, number(0.1, 3600, "(seconds)")] = 30.0
    attempts: Annotated[int, integer(1, 100)] = 3


class JobsTable(Table):
    """Whose jobs count."""

    accept_older_hosts: bool = False


class Config(Table):
    """A whole valid configuration."""

    name: HostName = Field(default_factory=socket.gethostname)
    state_dir: FilePath = "/var/lib/fabric-compute"
    stop_file: FilePath = "/etc/fabricd/STOP"
    mode_file: FilePath | None = None
    broker: BrokerTable
    jobs: JobsTable = Field(default_factory=JobsTable)
    policy: PolicyTable = Field(default_factory=PolicyTable)
    maintenance: Annotated[
        tuple[MaintenanceTable, ...],
        Field(max_length=1024, description="up to 1024 tables [[maintenance]]"),
    ] = ()
    metrics: MetricsTable = Field(default_factory=MetricsTable)
    ledger: LedgerTable = Field(default_factory=LedgerTable)
    exec: ExecTable | None = None

    @property
    def mode_path(self) -> Path:
        """Where the promoted mode stands."""
        return Path(self.mode_file) if self.mode_file else Path(self.state_dir) / "mode"

    @property
    def confirmed_path(self) -> Path:
        """The hosts whose loss an operator has confirmed, until that is taken."""
        return Path(self.state_dir) / "confirmed.json"

    @property
    def drained_path(self) -> Path:
        """Where the hosts to be drained stand."""
        return Path(self.state_dir) / "drained.json"

    @property
    def ledger_key(self) -> Path:
        """The private key that signs heads."""
        return Path(self.ledger.key_file or f"{self.state_dir}/ledger.key")

    def in_maintenance(self, wall: datetime) -> tuple[str, ...]:
        """Hosts over which nothing is decided at ``wall``, sorted."""
        windows = [one for one in self.maintenance if one.holds(wall)]
        return tuple(sorted({host for one in windows for host in one.hosts}))


def load(path: Path) -> Config:
    """Read and validate a file.

    Raises:
        ConfigError: with every problem; also when the file cannot be read.
    """
    try:
        text = durable.require_text(path, MAX_BYTES)
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise ConfigError([Problem(str(path), 0, "(file)", what)]) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        what = "not UTF-8; allowed: a TOML file in UTF-8"
        raise ConfigError([Problem(str(path), line, "(file)", what)]) from None
    return parse(text, str(path))


def parse(text: str, file: str) -> Config:
    """Validate a text; ``file`` is its name for messages. Raises ``ConfigError``."""
    try:
        raw = read_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([syntax_problem(str(error), text, file)]) from None
    found: list[tuple[Key, str]] = []
    config = None
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        found += [explain(item, Config, REFERENCE) for item in error.errors(include_url=False)]
    found += _check(raw)
    if not found and config is not None:
        return config
    lines = key_lines(text)
    unique = {(dotted(at), what): line_of(lines, at) for at, what in found}
    raise ConfigError([Problem(file, line, key, what) for (key, what), line in unique.items()])


def _check(raw: dict[str, Any]) -> list[tuple[Key, str]]:
    """Checks across keys, on the raw document: whatever has a wrong shape is left to pydantic."""
    found: list[tuple[Key, str]] = []
    name = raw.get("name", socket.gethostname())
    if isinstance(name, str) and (problem := name_problem(name, written="name" in raw)):
        found.append((("name",), problem))
    broker = raw.get("broker")
    if isinstance(broker, dict):
        for key, needs in (
            ("cert_file", "ca_file"), ("cert_file", "key_file"), ("key_file", "cert_file"),
            ("password_file", "username"),
        ):  # fmt: skip
            if key in broker and needs not in broker:
                found.append((("broker", key), f"stands alone; allowed: with {needs}"))
        host = broker.get("host")
        if isinstance(host, str) and "ca_file" not in broker and _is_public(host):
            text = f'"{host}" without TLS; allowed: ca_file, or a loopback or private address'
            found.append((("broker", "host"), text))
    windows = raw.get("maintenance")
    for index, window in enumerate(windows if isinstance(windows, list) else ()):
        if isinstance(window, dict):
            found += _check_window(("maintenance", index), window)
    command = raw["exec"].get("command") if isinstance(raw.get("exec"), dict) else None
    first = command[0] if isinstance(command, list) and command else "/"
    if isinstance(first, str) and not first.startswith("/"):
        text = f'"{first}" is no absolute path; allowed: an absolute path first'
        found.append((("exec", "command"), text))
    policy = raw.get("policy")
    if isinstance(policy, dict):
        least, most = policy.get("budget_least", 2), policy.get("budget_most", 16)
        if type(least) is int and type(most) is int and least > most:
            key = "budget_least" if "budget_least" in policy else "budget_most"
            text = f"budget_least ({least}) is over budget_most ({most}); allowed: at most that"
            found.append((("policy", key), text))
    return found


def _check_window(at: Key, window: dict[str, Any]) -> list[tuple[Key, str]]:
    found: list[tuple[Key, str]] = []
    times = {key: window[key] for key in ("begin", "end") if isinstance(window.get(key), datetime)}
    for key, time in times.items():
        if time.tzinfo is None:
            found.append(((*at, key), f"{time} has no offset; allowed: 2027-01-31T10:00:00Z"))
    if len(times) == 2 and not found and times["begin"] >= times["end"]:
        found.append(((*at, "end"), "end is not after begin; allowed: a later time"))
    return found


def _is_public(host: str) -> bool:
    """An address that needs TLS. The addresses of a name are checked when it is resolved."""
    try:
        return needs_tls(host)
    except ValueError:
        return False


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
