"""What the wheel holds; it is the one that the machines of this tier are installed from."""

import ast
import configparser
import hashlib
import io
import json
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from fabric_train.groups.plugin_library import find_collectives, find_plugin, load_library
from lab.supply import locked
from lab.vm import payload

REPO = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())
ELF = b"\x7fELF"


@pytest.fixture(scope="module")
def house():
    """The directory that a host is installed from."""
    return payload.wheels()


@pytest.fixture(scope="module")
def wheel(house):
    (path,) = house.glob("fabricd-*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def in_data(wheel, place):
    """Files of the wheel's data directory under ``place``, by their path below it."""
    prefix = f"fabricd-{PROJECT['project']['version']}.data/{place}/"
    return {n.removeprefix(prefix): n for n in wheel.namelist() if n.startswith(prefix)}


def dist_info(wheel, name):
    return wheel.read(f"fabricd-{PROJECT['project']['version']}.dist-info/{name}").decode()


def test_each_package_is_there_whole_and_nothing_else(wheel):
    packages = PROJECT["tool"]["scikit-build"]["wheel"]["packages"]
    wanted = set()
    for package in packages:
        for path in (REPO / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                wanted.add(str(path.relative_to(REPO)))
    shipped = {n for n in wheel.namelist() if not n.startswith("fabricd-") and not n.endswith("/")}
    assert shipped == wanted


def test_the_native_programs_and_the_plugin_are_there(wheel):
    programs = in_data(wheel, "scripts")
    assert set(programs) == {"fabric-prober", "fabric-perf"}
    plugins = in_data(wheel, "data/lib")
    assert set(plugins) == {
        "libnccl-net-fabric.so", "librccl-net-fabric.so", "libfabric-collectives.so",
    }  # fmt: skip
    for name in [*programs.values(), *plugins.values()]:
        assert wheel.read(name)[:4] == ELF, name
    for name in programs.values():
        assert wheel.getinfo(name).external_attr >> 16 & 0o111, f"{name} is not executable"


def test_the_plugin_loads_under_both_names(wheel, tmp_path):
    for name, inside in in_data(wheel, "data/lib").items():
        (tmp_path / name).write_bytes(wheel.read(inside))
    load = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).ncclNetPlugin_v11"
    for name in ("libnccl-net-fabric.so", "librccl-net-fabric.so"):
        subprocess.run([sys.executable, "-c", load, tmp_path / name], check=True, timeout=60)


def test_fabric_train_finds_the_collectives_beside_the_plugin(wheel, tmp_path):
    for name, inside in in_data(wheel, "data/lib").items():
        (tmp_path / name).write_bytes(wheel.read(inside))
    plugin = find_plugin({"NCCL_NET_PLUGIN": str(tmp_path / "libnccl-net-fabric.so")})
    assert load_library(find_collectives({}, plugin)).fabric_collectives_version() == 1


def test_the_units_are_there(wheel):
    units = set(in_data(wheel, "data/share/fabricd/systemd"))
    assert units == {
        str(path.relative_to(REPO / "systemd"))
        for path in (REPO / "systemd").rglob("*")
        if path.is_file()
    }
    assert {"fabricd.service", "fabric-prober.service", "udev/70-fabricd-ptp.rules"} <= units


def test_the_headers_of_the_clock_are_there(wheel):
    headers = in_data(wheel, "data/include/fabric")
    assert set(headers) == {p.name for p in (REPO / "clocksync/include/fabric").iterdir()}


def test_the_entry_points_lead_to_functions(wheel):
    points = configparser.ConfigParser()
    points.read_string(dist_info(wheel, "entry_points.txt"))
    assert dict(points["console_scripts"]) == PROJECT["project"]["scripts"]
    for target in points["console_scripts"].values():
        module, function = target.split(":")
        place = module.replace(".", "/")
        (name,) = {f"{place}.py", f"{place}/__init__.py"} & set(wheel.namelist())
        tree = ast.parse(wheel.read(name))
        assert function in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}


def test_licence_and_requirements_are_those_of_the_project(wheel):
    metadata = Parser().parse(io.StringIO(dist_info(wheel, "METADATA")))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert dist_info(wheel, "licenses/LICENSE") == (REPO / "LICENSE").read_text()
    required = [r for r in metadata.get_all("Requires-Dist") if "extra ==" not in r]
    assert len(required) == len(PROJECT["project"]["dependencies"])
    # GPL-2.0-only: an extra's, never the product's.
    assert not any(r.startswith("scapy") for r in required)


def test_the_bill_of_materials_is_valid_and_names_all_that_is_installed(house):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    (path,) = house.glob("fabricd-*.cdx.json")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(path.read_text()) is None
    document = json.loads(path.read_text())
    parts = {part["purl"]: part for part in document["components"]}
    assert [one for one in parts if one.startswith("pkg:deb/debian/libstdc")]
    for package in locked.read("runtime"):
        if package.applies():
            (digest,) = parts[f"pkg:pypi/{package.name}@{package.version}"]["hashes"]
            assert digest["alg"] == "SHA-256"
            assert digest["content"] in package.hashes
    ours = {
        part["name"].rpartition("/")[2] for part in document["metadata"]["component"]["components"]
    }
    assert ours == {
        "fabric-prober", "fabric-perf", "libnccl-net-fabric.so", "librccl-net-fabric.so",
        "libfabric-collectives.so",
    }  # fmt: skip


def test_each_wheel_is_installed_by_its_hash(house):
    packages = locked.parse((house / "requirements.txt").read_text())
    hashes = {digest for package in packages for digest in package.hashes}
    wheels = list(house.glob("*.whl"))
    assert len(wheels) == sum(package.applies() for package in packages)
    assert {hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels} <= hashes
