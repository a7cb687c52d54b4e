"""The bill of materials is a valid CycloneDX document, and names each wheel and native library."""

import hashlib
import json
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lab.supply import bill, locked, wheelhouse

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ELF = b"\x7fELF rest"
COMPILED = [
    bill.DebianPackage("libstdc++-12-dev", "12.2.0-14+deb12u1", "amd64"),
    bill.DebianPackage("nlohmann-json3-dev", "3.11.2-2", "all"),
]


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def wheel(tmp_path):
    """Makes a wheel of files and metadata."""

    def made(name, version="1.0", metadata="", **files):
        path = tmp_path / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            fields = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{metadata}"
            archive.writestr(f"{name}-{version}.dist-info/METADATA", f"{fields}\n\nLong text: no")
            for place, data in files.items():
                archive.writestr(place, data)
        return bill.Wheel.read(path)

    return made


@pytest.fixture
def wheels(wheel):
    needs = (
        "License-Expression: Apache-2.0\nRequires-Dist: Num_Py>=2\n"
        "Requires-Dist: odd\nRequires-Dist: scapy; extra == 'sniff'\n"
        "Requires-Dist: colorama; sys_platform == 'win32'\n"
    )
    place = "fabricd-0.1.0.data"
    ours = wheel(
        "fabricd", "0.1.0", needs,
        **{
            f"{place}/scripts/fabric-prober": ELF, f"{place}/data/lib/libnet.so": ELF + b"2",
            f"{place}/data/share/unit.service": b"[Unit]", "fabricd/x.py": b"",
        },
    )  # fmt: skip
    libraries = {"num_py.libs/libblas.so.3": ELF + b"3", "num_py/core.so": ELF}
    return [ours, wheel("num_py", "2.4", "Requires-Dist: odd", **libraries),
            wheel("odd", metadata="License-Expression: BSD (some kind)")]  # fmt: skip


def test_a_wheel_is_read(wheels):
    ours, num_py, _ = wheels
    assert (num_py.name, num_py.version, num_py.requires) == ("num-py", "2.4", {"odd"})
    assert num_py.sha256 == sha256(num_py.path.read_bytes())
    assert num_py.natives == (("num_py.libs/libblas.so.3", sha256(ELF + b"3")),)
    assert ours.requires == {"num-py", "odd"}
    assert [Path(native.path).name for native in ours.natives] == ["libnet.so", "fabric-prober"]


def test_the_bill_is_valid_and_whole(wheels):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    ours, *others = wheels
    text = bill.document(ours, others, COMPILED, now=NOW)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    root = document["metadata"]["component"]
    assert root["purl"] == "pkg:pypi/fabricd@0.1.0"
    assert {part["type"] for part in root["components"]} == {"application", "library"}
    parts = {part["name"]: part for part in document["components"]}
    assert parts["num-py"]["purl"] == "pkg:pypi/num-py@2.4"
    assert parts["num-py"]["hashes"] == [{"alg": "SHA-256", "content": others[0].sha256}]
    (library,) = parts["num-py"]["components"]
    assert library["hashes"] == [{"alg": "SHA-256", "content": sha256(ELF + b"3")}]
    assert parts["odd"]["licenses"] == [{"license": {"name": "BSD (some kind)"}}]
    assert root["licenses"] == [{"expression": "Apache-2.0"}]
    json3 = "pkg:deb/debian/nlohmann-json3-dev@3.11.2-2?arch=all"
    assert parts["nlohmann-json3-dev"]["purl"] == json3
    needed = {each["ref"]: each.get("dependsOn", []) for each in document["dependencies"]}
    assert {json3, "pkg:pypi/num-py@2.4", "pkg:pypi/odd@1.0"} < set(needed[root["bom-ref"]])
    assert needed["pkg:pypi/num-py@2.4"] == ["pkg:pypi/odd@1.0"]


def test_the_validator_refuses_what_is_no_bill(wheels):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    document = json.loads(bill.document(wheels[0], wheels[1:], COMPILED, now=NOW))
    document["components"][0]["hashes"] = [{"alg": "SHA-256", "content": "short"}]
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is not None


def test_two_bills_of_the_same_are_equal(wheels):
    ours, *others = wheels
    first, second = (
        bill.document(ours, kind, COMPILED, now=NOW) for kind in (others, others[::-1])
    )
    assert first == second
    assert '"serialNumber": "urn:uuid:' in first


def lock_of(*wheels, **other):
    def line(wheel):
        text = other.get(wheel.name, wheel.sha256)
        return f"{wheel.name}=={wheel.version} \\\n    --hash=sha256:{text}\n    # via x\n"

    return locked.parse(f"{locked.WHEELS_ALONE}\n\n{''.join(map(line, wheels))}")


def test_wheels_that_are_not_those_of_the_lock_are_refused(wheels):
    _, num_py, odd = wheels
    wheelhouse.check([num_py, odd], lock_of(num_py, odd))
    with pytest.raises(ValueError, match="alone: odd"):
        wheelhouse.check([num_py], lock_of(num_py, odd))
    with pytest.raises(ValueError, match="alone: odd"):
        wheelhouse.check([num_py, odd], lock_of(num_py))
    with pytest.raises(ValueError, match=r"odd-1.*: its SHA-256 is not in the lock"):
        wheelhouse.check([num_py, odd], lock_of(num_py, odd, odd="0" * 64))


def test_a_version_for_other_machines_is_not_missing(wheels):
    num_py = wheels[1]
    text = f"odd==9.0 ; sys_platform == 'win32' \\\n    --hash=sha256:{'0' * 64}\n    # via x\n"
    lines = f"{locked.WHEELS_ALONE}\n\n{text}num-py==2.4 \\\n    --hash=sha256:{num_py.sha256}\n"
    wheelhouse.check([num_py], locked.parse(lines))


def test_what_is_compiled_in_is_of_debian_packages():
    found = {package.name: package for package in bill.compiled_in()}
    assert {"libcli11-dev", "libibverbs-dev", "nlohmann-json3-dev"} < found.keys()
    assert any(name.startswith("libstdc++-") for name in found)
    assert all(package.version and package.architecture for package in found.values())


def test_a_file_of_no_package_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "own.hpp").touch()
    monkeypatch.setattr(bill, "_HEADERS", (str(tmp_path / "own.hpp"),))
    with pytest.raises(RuntimeError, match="no path found"):
        bill.compiled_in()


def test_a_directory_in_use_is_left_alone(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine").touch()
    monkeypatch.setattr("sys.argv", ["package", str(tmp_path)])
    assert wheelhouse.main() == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_what_a_host_installs_is_described(wheels, tmp_path, monkeypatch):
    """`describe` on the wheels above, with a lock of theirs."""
    ours, *others = wheels
    folder = tmp_path / "requirements"
    folder.mkdir()
    pins = "".join(
        f"{one.name}=={one.version} \\\n    --hash=sha256:{one.sha256}\n    # via x\n"
        for one in others
    )
    (folder / "runtime.txt").write_text(f"{locked.WHEELS_ALONE}\n\n{pins}")
    (folder / "sniff.txt").write_text("scapy")
    monkeypatch.setattr(locked, "FOLDER", folder)
    wheelhouse.describe(tmp_path, now=NOW)
    packages = locked.parse((tmp_path / "requirements.txt").read_text())
    assert {one.name: one.hashes for one in packages} == {
        one.name: {one.sha256} for one in (ours, *others)
    }
    document = json.loads((tmp_path / "fabricd-0.1.0.cdx.json").read_text())
    assert {"num-py", "odd"} < {part["name"] for part in document["components"]}
    others[0].path.write_bytes(ours.path.read_bytes())
    with pytest.raises(ValueError, match="too many values"):
        wheelhouse.describe(tmp_path, now=NOW)
