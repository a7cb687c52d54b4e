"""NCCL's variables: of this environment, of processes, and of NCCL's configuration files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from fabricd.doctor.facts import NcclEnvironment
from fabricd.doctor.process_scan import PREFIXES
from fabricd.doctor.tree import Tree

SYSTEM_FILE = "etc/nccl.conf"
_SEARCH = ("lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib",
           "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu",
           "lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu")  # fmt: skip


def environments(
    tree: Tree, own: Mapping[str, str], others: Mapping[int, Mapping[str, str]]
) -> tuple[NcclEnvironment, ...]:
    """This environment, then each process's.

    Args:
        tree: where files are read.
        own: variables of this process.
        others: pid → its variables.
    """
    found = [_environment(tree, "this environment", own, "")]
    for pid, variables in others.items():
        # A job in a container has files of its own.
        found.append(_environment(tree, f"process {pid}", variables, f"proc/{pid}/root/"))
    return tuple(found)


def parse_file(text: str) -> dict[str, str]:
    """NCCL's variables in its configuration file: ``NAME=value`` a line; ``#`` begins a comment.

    NCCL takes spaces around ``=`` for part of name and value, and the first line of a name. Other
    names are left out: a user's file may be a link to anything.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator and name.startswith(PREFIXES):
            found.setdefault(name, value)
    return found


def _environment(
    tree: Tree, source: str, everything: Mapping[str, str], root: str
) -> NcclEnvironment:
    variables = {k: v for k, v in everything.items() if k.startswith(PREFIXES)}
    file: dict[str, str] = {}
    name = ""
    # NCCL reads the user's file first; the system's overrides nothing that it set.
    users = everything.get("NCCL_CONF_FILE") or f"{everything.get('HOME', '')}/.nccl.conf"
    for place in (users.lstrip("/"), SYSTEM_FILE):
        text = tree.text(root + place) if place else None
        if text is not None:
            file = parse_file(text) | file
            name = name or f"/{place}"
    library = variables.get("NCCL_NET_PLUGIN", "")
    return NcclEnvironment(
        source, variables, file, name, _library_found(tree, root, library, everything)
    )


def _library_found(tree: Tree, root: str, named: str, everything: Mapping[str, str]) -> bool | None:
    """Whether the first library that NCCL_NET_PLUGIN names is where the loader looks."""
    first = named.split(",")[0].strip()
    if first in ("", "none"):
        return None
    if "/" in first:
        return tree.exists(root + first.lstrip("/")) if first.startswith("/") else None
    names = (first, f"libnccl-net-{first}.so", f"librccl-net-{first}.so")
    places = [x.lstrip("/") for x in everything.get("LD_LIBRARY_PATH", "").split(":") if x]
    return any(
        tree.exists(root + str(PurePosixPath(place) / name))
        for place in (*places, *_SEARCH) for name in names
    )  # fmt: skip
