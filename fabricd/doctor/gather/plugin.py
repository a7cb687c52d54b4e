"""The plugin's library: where it lies, whether it loads, which versions it speaks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fabricd.cli import plugin_env
from fabricd.doctor.facts import PluginLibrary
from fabricd.doctor.machine import Machine, ToolError
from fabricd.doctor.tree import Tree, why

CHILD = "fabricd.doctor.plugin_load"
MAX_LIBRARY = 64 * 1024 * 1024
_MARK = re.compile(
    rb"fabricd libnccl-net-fabric (?P<release>[\w.+-]{1,32}), "
    rb"wire (?P<min>\d{1,3})(?: to (?P<max>\d{1,3}))?(?:, (?P<transports>[a-z ]{1,64}))?\0"
)
_GLIBC = re.compile(rb"\0GLIBC_(\d{1,2})\.(\d{1,3})(?:\.\d{1,3})?(?=\0)")


def library(
    tree: Tree, machine: Machine, named: Path | None, variables: Mapping[str, str]
) -> PluginLibrary:
    """The library that a job would load.

    Args:
        tree: where files are read.
        machine: what loads it as a test.
        named: by the operator; None: an absolute ``NCCL_NET_PLUGIN``, else where `plugin env`
            looks.
        variables: of the environment.
    """
    places = [named.absolute()] if named is not None else _places(variables)
    for place in places:
        try:
            data = tree.data(str(place), MAX_LIBRARY)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return PluginLibrary(str(place), f"{place} cannot be read: {why(error)}")
        return _loaded(machine, str(place), data)
    looked = ", ".join(str(place) for place in places)
    return PluginLibrary(problem=f"no plugin library; looked for {looked}")


def described(path: str, data: bytes) -> PluginLibrary:
    """What a library's bytes say: build mark, digest, and the glibc that it asks for."""
    digest = hashlib.sha256(data).hexdigest()
    versions = [(int(major), int(minor)) for major, minor in _GLIBC.findall(data)]
    glibc = "{}.{}".format(*max(versions)) if versions else ""
    mark = _MARK.search(data)
    if mark is None:
        return PluginLibrary(path, sha256=digest, glibc=glibc)
    low = int(mark["min"])
    return PluginLibrary(
        path,
        release=mark["release"].decode(),
        wire_min=low,
        wire_max=int(mark["max"] or low),
        sha256=digest,
        glibc=glibc,
        transports=tuple((mark["transports"] or b"tcp").decode().split()),
    )


def _places(variables: Mapping[str, str]) -> list[Path]:
    first = variables.get("NCCL_NET_PLUGIN", "").split(",")[0].strip()
    return [Path(first)] if first.startswith("/") else plugin_env.candidates()


def _loaded(machine: Machine, path: str, data: bytes) -> PluginLibrary:
    found = described(path, data)
    try:
        answer = machine.child(CHILD, path)
    except ToolError as error:
        return replace(found, problem=f"{path} cannot be loaded: {error}")
    if text := answer.get("error"):
        return replace(found, problem=f"{path} does not load: {str(text)[:400]}")
    tables = tuple(x for x in answer.get("tables", ()) if isinstance(x, int))
    if not tables:
        return replace(found, problem=f"{path} is no NCCL network plugin: it has no table")
    if answer.get("name") != "FABRIC":
        name = str(answer.get("name"))[:40]
        return replace(found, tables=tables, problem=f"{path} is another plugin, {name!r}")
    return replace(found, tables=tables)
