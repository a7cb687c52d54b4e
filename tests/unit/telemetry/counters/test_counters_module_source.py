"""How a module is read: which pages, by which way, and what is said when there is none."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optics_images import Bus, cmis, frozen, qsfp, sfp
from pyroute2.netlink.generic.ethtool import ethtool_linkinfo_msg

from telemetry.counters.optics.eeprom import (
    IoctlEeprom,
    NetlinkEeprom,
    answer,
    ethtool_module_eeprom_msg,
    place,
    request,
)
from telemetry.counters.optics.memory import A2, LOWER, UPPER, Half
from telemetry.counters.optics.source import ModuleSource, fetch
from telemetry.counters.types import CounterError


@pytest.mark.parametrize("image", [sfp, qsfp, cmis])
def test_all_of_a_module_is_fetched_and_each_half_once(image):
    bus = Bus(image())
    assert fetch(bus) == bus.memory
    assert len(bus.asked) == len(set(bus.asked))


def test_a_page_that_does_not_answer_is_left_out():
    memory = qsfp()
    del memory[Half(upper=True, page=3)]
    bus = Bus(memory)
    source = ModuleSource("rail0", openers=[lambda netdev: bus])
    assert source.read(1).gauges["module_temperature"] == pytest.approx(41.25)
    assert source.status.on
    assert "thresholds: page 03h was not read" in source.status.reason
    assert bus.asked.count(Half(upper=True, page=3)) == 1


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (errno.EOPNOTSUPP, "no module memory"),
        (errno.EIO, "no module is plugged"),
        (errno.ENODEV, "no such device"),
        (errno.EPERM, "CAP_NET_ADMIN"),
    ],
)
def test_off_and_says_why(code, text):
    source = ModuleSource("rail0", openers=[lambda netdev: Bus({}, code)] * 2)
    assert source.read(1) is None
    assert not source.status.on
    assert text in source.status.reason


def test_garbage_is_off_and_no_number():
    memory = qsfp()
    memory[UPPER][30] ^= 1
    source = ModuleSource("rail0", openers=[lambda netdev: Bus(memory)])
    assert source.read(1) is None
    assert source.module is None
    assert "CC_BASE" in source.status.reason


def test_the_older_way_is_used_where_the_new_one_is_missing_and_stays_in_use():
    opened = []

    def way(name, memory, code):
        def opener(netdev):
            opened.append(name)
            return Bus(memory, code)

        return opener

    ways = [way("netlink", {}, errno.EOPNOTSUPP), way("ioctl", sfp(), errno.EIO)]
    source = ModuleSource("rail0", openers=ways)
    assert source.read(1) is not None
    assert source.read(2) is not None
    assert opened == ["netlink", "ioctl"]


def test_a_module_that_is_plugged_later_is_found_and_another_one_is_another_incarnation():
    bus = Bus({})
    source = ModuleSource("rail0", openers=[lambda netdev: bus])
    assert source.read(1) is None
    bus.memory = frozen(sfp())
    first = source.read(2)
    bus.memory = frozen(qsfp())
    second = source.read(3)
    assert source.status.on
    assert first.incarnation != second.incarnation


def test_request_is_what_the_kernel_wants():
    """Decoded again by pyroute2; numbers are those of include/uapi/linux/ethtool_netlink.h."""
    message = request("rail0", Half(upper=True, page=0x11, bank=1))
    message.encode()
    raw = bytes(message.data)
    assert raw[16] == 31
    decoded = ethtool_module_eeprom_msg(raw)
    decoded.decode()
    attributes = dict(decoded["attrs"])
    assert attributes["ETHTOOL_A_MODULE_EEPROM_OFFSET"] == 128
    assert attributes["ETHTOOL_A_MODULE_EEPROM_LENGTH"] == 128
    assert attributes["ETHTOOL_A_MODULE_EEPROM_PAGE"] == 0x11
    assert attributes["ETHTOOL_A_MODULE_EEPROM_BANK"] == 1
    assert attributes["ETHTOOL_A_MODULE_EEPROM_I2C_ADDRESS"] == 0x50
    header = attributes["ETHTOOL_A_MODULE_EEPROM_HEADER"]
    assert header.get_attr("ETHTOOL_A_HEADER_DEV_NAME") == "rail0"


@given(st.binary(max_size=200))
def test_answer_of_another_size(data):
    message = ethtool_module_eeprom_msg()
    message["attrs"] = [("ETHTOOL_A_MODULE_EEPROM_DATA", data)]
    message.encode()
    decoded = ethtool_module_eeprom_msg(bytes(message.data))
    decoded.decode()
    if len(data) == 128:
        assert answer((decoded,), LOWER) == data
    else:
        with pytest.raises(CounterError, match=r"instead of 128|no data"):
            answer((decoded,), LOWER)


@pytest.mark.parametrize("replies", [(), (ethtool_linkinfo_msg(),)])
def test_no_answer(replies):
    with pytest.raises(CounterError, match="no data"):
        answer(replies, LOWER)


@pytest.mark.parametrize(
    ("half", "kind", "size", "at"),
    [
        (LOWER, 2, 512, 0),
        (A2, 2, 512, 256),
        (UPPER, 3, 256, 128),
        (Half(upper=True, page=3), 3, 640, 512),
    ],
)
def test_place_in_the_flat_image(half, kind, size, at):
    assert place(half, kind, size) == at


@pytest.mark.parametrize(
    ("half", "kind", "size"),
    [
        (A2, 1, 256),
        (A2, 3, 640),
        (Half(upper=True, page=3), 3, 256),
        (Half(upper=True, page=0x11), 3, 640),
        (Half(upper=True, page=1, bank=1), 3, 640),
        (Half(upper=True, page=3), 2, 512),
    ],
)
def test_what_the_flat_image_has_not(half, kind, size):
    with pytest.raises(OSError, match="has no"):
        place(half, kind, size)


@pytest.mark.parametrize("way", [NetlinkEeprom, IoctlEeprom])
@pytest.mark.parametrize("netdev", ["lo", "no-such-dev", "a-name-that-is-too-long-for-linux"])
def test_this_kernel_says_no(way, netdev):
    """The loopback device has no module: a real request, and a real refusal."""
    try:
        eeprom = way(netdev)
    except OSError:
        pytest.skip("no ethtool netlink here")
    try:
        with pytest.raises(OSError) as error:  # noqa: PT011 (by errno below)
            eeprom.read(LOWER)
        allowed = (errno.EOPNOTSUPP, errno.ENODEV, errno.EPERM, errno.EINVAL, errno.ERANGE)
        assert error.value.errno in allowed
    finally:
        eeprom.close()


def test_a_device_without_a_module_is_off():
    source = ModuleSource("lo")
    assert source.read(1) is None
    assert not source.status.on
    assert source.status.reason
    source.close()
