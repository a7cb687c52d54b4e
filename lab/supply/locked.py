"""Reads a lock file: packages, versions, hashes, and who asks for each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

from lab.supply.locking import FROM_SOURCE, WHEELS_ALONE

FOLDER = Path(__file__).resolve().parents[2] / "requirements"
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_VIA = re.compile(r"# +(?:via +)?(\S.*)")


@dataclass(frozen=True)
class Locked:
    """One package of a lock file.

    Attributes:
        name: normalized (PEP 503).
        version: the only one.
        marker: where it applies; None: everywhere.
        hashes: SHA-256 of its files, hexadecimal.
        via: names of packages that ask for it, and ``-r NAME.in`` for the project itself.
    """

    name: NormalizedName
    version: Version
    marker: Marker | None
    hashes: frozenset[str]
    via: frozenset[str]

    def applies(self) -> bool:
        """Whether this interpreter on this machine is meant."""
        return self.marker is None or self.marker.evaluate()


def parse(text: str) -> list[Locked]:
    """The packages of a lock file's text.

    Raises:
        ValueError: a line that is no pinned package with hashes, or that names an index, a URL or
            a local path, or the file takes more than wheels.
    """
    found, options = [], []
    # A package's lines end where the next one begins: all but the first are indented.
    for block in re.split(r"\n(?! )", text.strip()):
        if not block.strip() or block.startswith("#"):
            continue
        if block.startswith("-"):
            options.append(block.strip())
        else:
            found.append(_package(block))
    if options not in ([WHEELS_ALONE], [WHEELS_ALONE, FROM_SOURCE]):
        raise ValueError(f"options of a lock are {WHEELS_ALONE!r} alone, not {options}")
    return found


def read(lock: str) -> list[Locked]:
    """The packages of ``requirements/LOCK.txt``.

    Raises:
        OSError: it cannot be read.
        ValueError: as `parse`.
    """
    return parse((FOLDER / f"{lock}.txt").read_text())


def _package(block: str) -> Locked:
    first, *rest = (line.strip().removesuffix("\\").strip() for line in block.splitlines())
    try:
        requirement = Requirement(first)
    except InvalidRequirement as error:
        raise ValueError(f"{first!r}: {error}") from None
    pins = list(requirement.specifier)
    if requirement.url or len(pins) != 1 or pins[0].operator != "==" or "*" in pins[0].version:
        raise ValueError(f"{first!r}: not one version")
    hashes, via = set(), set()
    for line in rest:
        if match := _HASH.fullmatch(line):
            hashes.add(match[1])
        elif match := _VIA.fullmatch(line):
            via.add(match[1])
        elif line not in ("#", "# via"):
            raise ValueError(f"{first!r}: {line!r}")
    if not hashes:
        raise ValueError(f"{first!r}: no hash")
    asks = {item for item in via if item != "via" and not item.startswith("-c ")}
    return Locked(
        canonicalize_name(requirement.name), Version(pins[0].version), requirement.marker,
        frozenset(hashes), frozenset(asks),
    )  # fmt: skip
