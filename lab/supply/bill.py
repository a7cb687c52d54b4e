"""The bill of materials (SBOM) of what a host is installed from: CycloneDX 1.6, JSON.

It names fabricd with its programs and libraries, what is compiled into them, each dependency by its
purl and the SHA-256 of its wheel, and the native libraries that a dependency's wheel brings along.
"""

from __future__ import annotations

import hashlib
import subprocess
import uuid
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

from cyclonedx.contrib.license.exceptions import InvalidLicenseExpressionException
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

_ELF = b"\x7fELF"
_NAMESPACE = uuid.UUID("6f1d2f8e-55c4-4a3c-9a35-0d1f6f2c9b4e")
_HEADERS = ("nlohmann/json.hpp", "CLI/CLI.hpp", "infiniband/verbs.h")
_ARCHIVES = ("libstdc++.a", "libgcc.a")


class Native(NamedTuple):
    """A program or shared library in a wheel, by its path there."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Wheel:
    """What of a wheel goes into a bill.

    Attributes:
        path: of the file.
        name: normalized.
        version: as its metadata has it.
        sha256: of the file, hexadecimal.
        licence: an SPDX expression (PEP 639); "": it says none.
        requires: names of what it needs here, without extras.
        natives: of fabricd its programs and libraries; of others the libraries that their makers
            have put beside their own modules (auditwheel's ``NAME.libs/``).
    """

    path: Path
    name: NormalizedName
    version: str
    sha256: str
    licence: str
    requires: frozenset[NormalizedName]
    natives: tuple[Native, ...]

    @classmethod
    def read(cls, path: Path) -> Wheel:
        """Read a wheel.

        Raises:
            ValueError: it has no metadata, or more than one.
            zipfile.BadZipFile: it is no wheel.
        """
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
            fields = Parser().parsestr(archive.read(metadata).decode())
            places = [name for name in names if ".libs/" in name or ".data/" in name]
            contents = ((name, archive.read(name)) for name in sorted(places))
            natives = [
                Native(name, hashlib.sha256(data).hexdigest())
                for name, data in contents
                if data.startswith(_ELF)
            ]
        requirements = [Requirement(line) for line in fields.get_all("Requires-Dist", [])]
        needed = [x for x in requirements if not x.marker or x.marker.evaluate({"extra": ""})]
        return cls(
            path, canonicalize_name(fields["Name"]), fields["Version"],
            hashlib.sha256(path.read_bytes()).hexdigest(), fields.get("License-Expression", ""),
            frozenset(canonicalize_name(x.name) for x in needed), tuple(natives),
        )  # fmt: skip


class DebianPackage(NamedTuple):
    """A package whose headers or archive are compiled into the programs."""

    name: str
    version: str
    architecture: str


def compiled_in() -> list[DebianPackage]:
    """What the compiler of this machine puts into our programs, by the packages that it is of.

    Raises:
        RuntimeError: a file of it is of no Debian package, so nobody can say which version it is.
    """
    find = [["c++", f"-print-file-name={archive}"] for archive in _ARCHIVES]
    files = [Path(_output(argv)).resolve() for argv in find]
    files += [Path("/usr/include", header) for header in _HEADERS]
    found = set()
    for file in files:
        owner, _, _ = _output(["dpkg-query", "--search", str(file)]).rpartition(":")
        row = "${Package} ${Version} ${Architecture}"
        found.add(DebianPackage(*_output(["dpkg-query", "-W", "-f", row, owner]).split()))
    return sorted(found)


def _output(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"{' '.join(argv)}: {getattr(error, 'stderr', '') or error}") from error
    return done.stdout.strip()


def document(
    ours: Wheel, others: Iterable[Wheel], compiled: Iterable[DebianPackage], *, now: datetime
) -> str:
    """The bill as JSON; two of the same wheels and time are equal.

    Args:
        ours: fabricd's wheel.
        others: of its dependencies.
        compiled: as of `compiled_in`.
        now: when it is made.
    """
    bom = Bom(serial_number=uuid.uuid5(_NAMESPACE, ours.sha256))
    bom.metadata.timestamp = now
    root = _component(ours, ComponentType.APPLICATION)
    bom.metadata.component = root
    built = [_debian(package) for package in compiled]
    known = {wheel.name: (wheel, _component(wheel, ComponentType.LIBRARY)) for wheel in others}
    for component in built:
        bom.components.add(component)
    for _, component in known.values():
        bom.components.add(component)
    bom.register_dependency(root, [*built, *(known[name][1] for name in ours.requires)])
    for wheel, component in known.values():
        needed = wheel.requires & known.keys()
        bom.register_dependency(component, [known[name][1] for name in needed])
    return JsonV1Dot6(bom).output_as_string(indent=2)


def _component(wheel: Wheel, kind: ComponentType) -> Component:
    purl = PackageURL("pypi", name=wheel.name, version=wheel.version)
    return Component(
        type=kind, name=wheel.name, version=wheel.version, purl=purl, bom_ref=purl.to_string(),
        hashes=[_hash(wheel.sha256)], licenses=_licences(wheel.licence),
        components=[_native(purl, native) for native in wheel.natives],
    )  # fmt: skip


def _licences(expression: str) -> list[License]:
    """What a wheel says; no list of names (SPDX) has all that are in use."""
    if not expression:
        return []
    try:
        return [LicenseFactory().make_with_expression(expression)]
    except InvalidLicenseExpressionException:
        return [LicenseFactory().make_with_name(expression)]


def _native(owner: PackageURL, native: Native) -> Component:
    kind = ComponentType.LIBRARY if ".so" in Path(native.path).name else ComponentType.APPLICATION
    return Component(
        type=kind, name=native.path, hashes=[_hash(native.sha256)],
        bom_ref=f"{owner.to_string()}#{native.path}",
    )  # fmt: skip


def _debian(package: DebianPackage) -> Component:
    purl = PackageURL(
        "deb", "debian", package.name, package.version, {"arch": package.architecture}
    )
    return Component(
        type=ComponentType.LIBRARY, name=package.name, version=package.version, purl=purl,
        bom_ref=purl.to_string(),
    )  # fmt: skip


def _hash(sha256: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=sha256)
