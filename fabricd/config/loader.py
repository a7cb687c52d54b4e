"""The configuration: a TOML file and its overrides (``conf.d``), validated as a whole.

`load` either returns a frozen `Config` or raises `ConfigError` with *every* problem found, each
with file, line, key and what is allowed. The tables are in `tables`.
"""

from __future__ import annotations

import hashlib
import json
import socket
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fabricd.config import checks
from fabricd.config.files import Layers, override_files
from fabricd.config.tables import Config
from telemetry.service.config_errors import (
    ConfigError,
    Problem,
    dotted,
    explain,
    syntax_problem,
)

__all__ = [
    "Config",
    "ConfigError",
    "Problem",
    "config_hash",
    "files_of",
    "load",
    "parse",
    "policy_hash",
]


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
            problems.append(syntax_problem(str(error), text, file))
    if problems:  # Half a configuration would be judged wrongly.
        raise ConfigError(problems)
    found: list[tuple[tuple[str | int, ...], str]] = []
    config = None
    try:
        config = Config.model_validate(layers.raw)
    except ValidationError as error:
        found += [
            explain(item, Config, "docs/reference/configuration.md")
            for item in error.errors(include_url=False)
        ]
    found += checks.check(layers.raw, local_host=raw_host(layers.raw))
    # A union reports each of its members: one line per key is enough.
    seen: dict[tuple[str, str], Problem] = {}
    for path, what in found:
        key = dotted(path)
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
