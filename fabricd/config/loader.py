"""The configuration: a TOML file, its overrides (``conf.d``) and ``peers_file``, as a whole.

`load` either returns a frozen `Config` or raises `ConfigError` with *every* problem found, each
with file, line, key and what is allowed. The tables are in `tables`.
"""

from __future__ import annotations

import contextlib
import socket
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fabricd.config import checks
from fabricd.config.digest import config_hash, policy_hash
from fabricd.config.files import Layers, override_files
from fabricd.config.netdev_names import kernel_name
from fabricd.config.peers_file import MAX_BYTES, FileState, PeersFile, read_peers_file
from fabricd.config.tables import Config
from telemetry.service import durable
from telemetry.service.config_errors import (
    ConfigError,
    Problem,
    dotted,
    explain,
    syntax_problem,
)
from telemetry.service.toml_text import read_toml

__all__ = [
    "Config",
    "ConfigError",
    "Loaded",
    "Problem",
    "config_hash",
    "files_of",
    "load",
    "parse",
    "policy_hash",
    "read",
]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid configuration and the files that it comes from.

    Attributes:
        config: as a whole.
        files: that were read, in order.
        peers_file: the version of ``[paths] peers_file`` that was read; None: there is none.
    """

    config: Config
    files: tuple[str, ...]
    peers_file: FileState | None = None
    altnames: tuple[tuple[str, str], ...] = ()
    """Altnames that ``[[links]]`` has, and the kernel's names that stand in ``config``."""


def load(path: Path | str, *, shared_peers: bool = True) -> Config:
    """Read and validate a file, its overrides and the ``peers_file`` that they name.

    Args:
        path: of the main file.
        shared_peers: False for a program that needs no peers: ``peers_file`` is not read.

    Raises:
        ConfigError: with every problem; also when a file cannot be read.
    """
    return read(path, shared_peers=shared_peers).config


def read(
    path: Path | str,
    *,
    shared_peers: bool = True,
    seen: Callable[[FileState], None] = lambda _: None,
) -> Loaded:
    """As `load`, with the names of the files.

    Args:
        path: of the main file.
        shared_peers: False: ``peers_file`` is not read.
        seen: called with the version of ``peers_file`` that is read, good or bad.

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
            texts.append((str(file), durable.require_text(file, MAX_BYTES)))
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
            problems.append(Problem(str(file), 0, "(file)", what))
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            what = "not UTF-8; allowed: a TOML file in UTF-8"
            problems.append(Problem(str(file), line, "(file)", what))
    layers = _merged(texts, problems)
    name = _peers_file(layers.raw) if shared_peers and not problems else None
    shared = None if name is None else read_peers_file(name)
    if shared is not None:
        seen(shared.state)
        _append(layers, shared, problems)
    unread = not shared_peers and _peers_file(layers.raw) is not None
    config = _validate(layers, problems, all_peers=not unread)
    config, altnames = _with_kernel_names(config, layers)
    return Loaded(config, tuple(layers.files), None if shared is None else shared.state, altnames)


def parse(text: str, file: str) -> Config:
    """Validate one text; ``file`` is its name for the messages. No other file is read.

    Raises:
        ConfigError: with every problem found.
    """
    problems: list[Problem] = []
    return _validate(_merged([(file, text)], problems), problems)


def files_of(path: Path | str) -> list[str]:
    """The files that `load` reads, in order; ``peers_file`` where the others can be read.

    Raises:
        OSError: ``conf.d`` is there but cannot be listed.
    """
    files = [Path(path), *override_files(Path(path))]
    texts = []
    for file in files:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            texts.append((str(file), durable.require_text(file, MAX_BYTES)))
    name = _peers_file(_merged(texts, []).raw)
    return [*map(str, files), *([] if name is None else [name])]


def _merged(texts: list[tuple[str, str]], problems: list[Problem]) -> Layers:
    """The texts as one document; ``problems`` gets those of their syntax."""
    layers = Layers()
    for file, text in texts:
        try:
            layers.lay(file, read_toml(text), text)
        except tomllib.TOMLDecodeError as error:
            problems.append(syntax_problem(str(error), text, file))
    return layers


def _peers_file(raw: dict[str, Any]) -> str | None:
    """The name in unvalidated data; None: there is none, or validation refuses it."""
    table = raw.get("paths")
    name = table.get("peers_file") if isinstance(table, dict) else None
    return name if isinstance(name, str) and name.startswith("/") and "\0" not in name else None


def _append(layers: Layers, shared: PeersFile, problems: list[Problem]) -> None:
    if shared.problems:
        place = layers.origin(("paths", "peers_file"))
        for problem in shared.problems:
            by = f" (paths.peers_file of {place.file}:{place.line})" * (problem.key == "(file)")
            problems.append(replace(problem, text=problem.text + by))
        return
    layers.append_peers(shared.name, list(shared.peers), shared.text)


def _validate(layers: Layers, problems: list[Problem], *, all_peers: bool = True) -> Config:
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
    host = raw_host(layers.raw)
    found += checks.check(layers.raw, local_host=host, place=layers.origin, all_peers=all_peers)
    # A union reports each of its members: one line per key is enough.
    seen: dict[tuple[str, str, str], Problem] = {}
    for path, what in found:
        place = layers.origin(path)
        key = dotted(place.key)
        seen.setdefault((place.file, key, what), Problem(place.file, place.line, key, what))
    if seen or config is None:
        files = {file: number for number, file in enumerate(layers.files)}
        raise ConfigError(sorted(seen.values(), key=lambda p: files[p.file]))
    return _without_own(config)


def _with_kernel_names(
    config: Config, layers: Layers
) -> tuple[Config, tuple[tuple[str, str], ...]]:
    """Links by the names that the kernel, the prober and jobs know their devices by.

    A device that is not here keeps the name that it has in the file.
    """
    names = {link.netdev: kernel_name(link.netdev) for link in config.links}
    altnames = tuple((name, kernel) for name, kernel in names.items() if name != kernel)
    if not altnames:
        return config, ()
    links, seen, problems = [], dict[str, int](), []
    for index, link in enumerate(config.links):
        kernel = names[link.netdev]
        if seen.setdefault(kernel, index) != index:
            place = layers.origin(("links", index, "netdev"))
            first = config.links[seen[kernel]].netdev
            text = (
                f"{link.netdev} and links[{seen[kernel]}].netdev ({first}) are one device, "
                f"{kernel}; allowed: each netdev once"
            )
            problems.append(Problem(place.file, place.line, dotted(place.key), text))
        links.append(link.model_copy(update={"netdev": kernel}))
    if problems:
        raise ConfigError(problems)
    return config.model_copy(update={"links": tuple(links)}), altnames


def _without_own(config: Config) -> Config:
    """Without the entry of this host, which a list that all hosts share has."""
    others = tuple(peer for peer in config.peers if peer.host != config.host.name)
    same = len(others) == len(config.peers)
    return config if same else config.model_copy(update={"peers": others})


def raw_host(raw: dict[str, Any]) -> str:
    """The host's name in unvalidated data, or this machine's."""
    table = raw.get("host")
    name = table.get("name") if isinstance(table, dict) else None
    return name if isinstance(name, str) else socket.gethostname()
