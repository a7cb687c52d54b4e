"""PCIe: error counts and a link below what it could be.

Texts as in Documentation/ABI/testing/sysfs-bus-pci-devices-aer and drivers/pci/pci-sysfs.c.
"""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.counters.pci import PciSource, aer, link, speed, width
from telemetry.counters.types import CounterError

CORRECTABLE = """RxErr 2
BadTLP 0
BadDLLP 1
Rollover 0
Timeout 4
NonFatalErr 0
CorrIntErr 0
HeaderOF 0
TOTAL_ERR_COR 7
"""
OLD = "Receiver Error 2\nBad TLP 1\nRELAY_NUM Rollover 0\n"


def test_aer():
    assert aer(CORRECTABLE) == {
        "RxErr": 2,
        "BadTLP": 0,
        "BadDLLP": 1,
        "Rollover": 0,
        "Timeout": 4,
        "NonFatalErr": 0,
        "CorrIntErr": 0,
        "HeaderOF": 0,
        "total": 7,
    }


def test_aer_long_names_without_a_total():
    assert aer(OLD) == {
        "Receiver Error": 2,
        "Bad TLP": 1,
        "RELAY_NUM Rollover": 0,
        "total": 3,
    }


@pytest.mark.parametrize(
    "text",
    ["", "\n", "RxErr", "RxErr -1", "RxErr 0x2", "RxErr 1\nRxErr 2", "A 99999999999999999999"],
)
def test_aer_garbage(text):
    with pytest.raises(CounterError):
        aer(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16.0 GT/s PCIe\n", 16e9),
        ("2.5 GT/s PCIe\n", 2.5e9),
        ("8 GT/s\n", 8e9),
        ("64.0 GT/s PCIe", 64e9),
        ("Unknown\n", None),
        ("Unknown speed\n", None),
    ],
)
def test_speed(text, value):
    assert speed(text) == value


@pytest.mark.parametrize("text", ["", "fast", "16.0", "16.0 Gb/s", "-8 GT/s", "1e9 GT/s"])
def test_speed_garbage(text):
    with pytest.raises(CounterError):
        speed(text)


@pytest.mark.parametrize(("text", "value"), [("16\n", 16), ("0\n", None), ("255", None)])
def test_width(text, value):
    assert width(text) == value


@pytest.mark.parametrize("text", ["", "x16", "3", "-1", "64", "٤"])
def test_width_garbage(text):
    with pytest.raises(CounterError):
        width(text)


def files(now, most):
    return {
        "current_link_speed": f"{now[0]} GT/s PCIe\n",
        "current_link_width": f"{now[1]}\n",
        "max_link_speed": f"{most[0]} GT/s PCIe\n",
        "max_link_width": f"{most[1]}\n",
    }


def test_downgrade():
    found = link(files(("16.0", 8), ("32.0", 16)), files(("16.0", 8), ("32.0", 16)))
    assert found.downgraded == "16 of 32 GT/s, x8 of x16"


def test_a_slower_slot_is_no_downgrade():
    assert link(files(("16.0", 8), ("32.0", 16)), files(("16.0", 8), ("16.0", 8))).downgraded == ""


def test_what_is_not_known_is_no_downgrade():
    assert link({}, {}).downgraded == ""
    assert link({"current_link_speed": "Unknown"}, {}).speed is None


def machine(tmp_path, attributes, port=()):
    bus = tmp_path / "bus" / "pci"
    bus.mkdir(parents=True)
    root = tmp_path / "devices" / "0000:3a:00.0"
    function = root / "0000:3b:00.0"
    function.mkdir(parents=True)
    (function / "subsystem").symlink_to(bus)
    for folder, texts in ((root, dict(port)), (function, attributes)):
        for name, text in texts.items():
            (folder / name).write_text(text)
    net = tmp_path / "net" / "rail0"
    net.mkdir(parents=True)
    (net / "device").symlink_to(function)
    return tmp_path / "net"


def test_source(tmp_path):
    attributes = files(("16.0", 16), ("32.0", 16)) | {
        "aer_dev_correctable": CORRECTABLE,
        "aer_dev_nonfatal": "Undefined 0\nDLP 1\nTOTAL_ERR_NONFATAL 1\n",
        "aer_dev_fatal": "garbage\n",
    }
    net = machine(tmp_path, attributes, files(("16.0", 16), ("32.0", 16)))
    source = PciSource("rail0", sysfs=net)
    told = source.read(9)
    assert told.device == "0000:3b:00.0"
    assert told.values == {"aer_correctable": 7, "aer_nonfatal": 1}
    assert told.gauges == {
        "pcie_speed": 16e9,
        "pcie_speed_max": 32e9,
        "pcie_width": 16,
        "pcie_width_max": 16,
    }
    assert "garbage" in told.skipped["aer_fatal"]
    assert source.status.on


SOUND, HALF = files(("32.0", 16), ("32.0", 16)), files(("16.0", 8), ("32.0", 16))


def behind_switches(tmp_path, *uplinks):
    """A sound NIC behind switches, from the root port down: each with its uplink's files."""
    folder = tmp_path / "devices" / "pci0000:3a" / "0000:3a:00.0"
    chain = [folder]
    texts = [uplinks[0] if uplinks else SOUND]
    for number, files_ in enumerate(uplinks):
        bus = f"0000:{0x3B + 2 * number:02x}:00.0", f"0000:{0x3C + 2 * number:02x}:08.0"
        chain += [chain[-1] / bus[0], chain[-1] / bus[0] / bus[1]]
        texts += [files_, uplinks[number + 1] if number + 1 < len(uplinks) else SOUND]
    chain.append(chain[-1] / "0000:99:00.0")
    texts.append(SOUND)
    chain[-1].mkdir(parents=True)
    pci = tmp_path / "bus" / "pci"
    pci.mkdir(parents=True)
    (chain[-1] / "subsystem").symlink_to(pci)
    for place, attributes in zip(chain, texts, strict=True):
        for name, text in attributes.items():
            (place / name).write_text(text)
    net = tmp_path / "net" / "rail0"
    net.mkdir(parents=True)
    (net / "device").symlink_to(chain[-1])
    return tmp_path / "net"


def uplink_gauges(net):
    gauges = PciSource("rail0", sysfs=net).read(1).gauges
    assert gauges["pcie_width"] == gauges["pcie_width_max"] == 16, "the NIC's own link is sound"
    return {name.removeprefix("pcie_uplink_"): value for name, value in gauges.items()
            if name.startswith("pcie_uplink")}  # fmt: skip


def test_the_uplink_of_a_switch_above_the_nic_is_read(tmp_path):
    assert uplink_gauges(behind_switches(tmp_path, HALF)) == {
        "speed": 16e9, "speed_max": 32e9, "width": 8, "width_max": 16
    }  # fmt: skip


@pytest.mark.parametrize("uplinks", [(SOUND, HALF), (HALF, SOUND)])
def test_of_several_switches_the_worst_uplink_counts(tmp_path, uplinks):
    assert uplink_gauges(behind_switches(tmp_path, *uplinks))["width"] == 8


def test_a_nic_at_the_root_port_has_no_uplink(tmp_path):
    assert uplink_gauges(behind_switches(tmp_path)) == {}


def test_an_uplink_that_cannot_be_read_hides_not_the_nics_own_link(tmp_path):
    net = behind_switches(tmp_path, HALF | {"current_link_width": "many\n"})
    told = PciSource("rail0", sysfs=net).read(1)
    assert told.gauges["pcie_width"] == 16
    assert "many" in told.skipped["pcie_uplink_speed"]


def test_source_without_aer_says_so(tmp_path):
    source = PciSource("rail0", sysfs=machine(tmp_path, files(("8.0", 8), ("8.0", 8))))
    assert source.read(1).values == {}
    assert "does not count AER" in source.status.reason


def test_source_of_a_virtual_device_is_off(tmp_path):
    source = PciSource("rail0", sysfs=tmp_path)
    assert source.read(1) is None
    assert source.status.reason == "not a PCI device"


@given(st.text(max_size=300))
def test_fuzz(text):
    for parser in (aer, speed, width):
        with suppress(CounterError):
            parser(text)


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z][A-Za-z_]{0,11}", fullmatch=True).filter(
            lambda name: not name.startswith("TOTAL_ERR_") and name != "total"
        ),
        st.integers(0, 2**64 - 1),
        min_size=1,
        max_size=20,
    )
)
def test_aer_round_trip(counts):
    text = "".join(f"{name} {count}\n" for name, count in counts.items())
    assert aer(text) == counts | {"total": sum(counts.values())}
