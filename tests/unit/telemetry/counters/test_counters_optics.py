"""Modules' memory maps: what is measured comes out in units, and nothing else does."""

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optics_images import checked, cmis, frozen, put, qsfp, sfp, words

from telemetry.counters.optics import cmis as cmis_map
from telemetry.counters.optics.memory import A2, LOWER, UPPER, Half, f16
from telemetry.counters.optics.reading import Module, sample
from telemetry.counters.optics.source import parse
from telemetry.counters.types import CounterError
from telemetry.counters.vocabulary import FLAGS, GAUGES

LIMITS = Half(upper=True, page=3)
PAGE1, PAGE2 = Half(upper=True, page=1), Half(upper=True, page=2)
LANES = Half(upper=True, page=0x11)


def test_sfp_readings():
    module = parse(frozen(sfp()))
    assert (module.standard, module.form, module.vendor) == ("SFF-8472", "SFP", "ACME OPTICS")
    assert (module.part, module.revision, module.serial) == ("AO-10G-LR", "B2", "AO24A00017")
    assert module.temperature == pytest.approx(36.5)
    assert module.voltage == pytest.approx(3.3)
    (lane,) = module.lanes
    assert lane.tx_bias == pytest.approx(30e-3)
    assert lane.tx_power == pytest.approx(500e-6)
    assert lane.rx_power == pytest.approx(400e-6)
    assert module.thresholds["rx_power"].low_alarm == pytest.approx(23.4e-6)
    assert module.thresholds["temperature"].low_alarm == -5
    assert module.flags == frozenset()
    assert module.skipped == {}


def test_sfp_external_calibration():
    module = parse(frozen(sfp(external=True)))
    assert module.temperature == pytest.approx(36.0)
    assert module.voltage == pytest.approx(3.3)
    # 1e-4·2000² + 0.5·2000 + 3 = 1403 units of 0.1 µW.
    assert module.lanes[0].rx_power == pytest.approx(140.3e-6)
    assert module.thresholds["temperature"].high_alarm == pytest.approx(74.0)


@pytest.mark.parametrize(
    ("at", "bit", "flag"),
    [
        (112, 7, "temperature_high_alarm"),
        (112, 4, "voltage_low_alarm"),
        (112, 3, "tx_bias_high_alarm/0"),
        (112, 0, "tx_power_low_alarm/0"),
        (113, 6, "rx_power_low_alarm/0"),
        (116, 6, "temperature_low_warning"),
        (117, 7, "rx_power_high_warning/0"),
        (110, 2, "tx_fault/0"),
        (110, 1, "rx_los/0"),
    ],
)
def test_sfp_flags(at, bit, flag):
    memory = sfp()
    memory[A2][at] |= 1 << bit
    assert parse(frozen(memory)).flags == {flag}


def test_sfp_flags_that_it_does_not_implement():
    memory = sfp()
    memory[LOWER][93] = 0
    checked(memory[LOWER], 64, 94, 95)
    memory[A2][110] = memory[A2][112] = 0xFE
    assert parse(frozen(memory)).flags == frozenset()


def test_sfp_copper_has_no_alarms_of_a_laser():
    memory = sfp()
    memory[LOWER][8] = 0x04
    checked(memory[LOWER], 0, 62, 63)
    memory[A2][112:118] = b"\xff" * 6
    flags = parse(frozen(memory)).flags
    assert {flag.partition("_")[0] for flag in flags} == {"temperature", "voltage"}


def test_sfp_alarms_of_a_sensor_that_is_not_there():
    memory = sfp()
    words(memory[A2], 96, 0x8000, 0)
    memory[A2][112] = 0b0101_0000  # temperature and voltage, low
    module = parse(frozen(memory))
    assert (module.temperature, module.voltage, module.flags) == (None, None, frozenset())


def test_sfp_damaged_constants_give_no_calibrated_number():
    memory = sfp(external=True)
    memory[A2][85] ^= 1
    module = parse(frozen(memory))
    assert module.temperature is None
    assert module.lanes == ()
    assert "damaged" in module.skipped["readings"]


def test_sfp_damaged_thresholds_leave_the_internally_calibrated_readings():
    memory = sfp()
    memory[A2][1] ^= 1
    module = parse(frozen(memory))
    assert module.thresholds == {}
    assert "CC_DMI" in module.skipped["thresholds"]
    assert module.temperature == pytest.approx(36.5)


def test_sfp_not_ready():
    memory = sfp()
    memory[A2][110] |= 1
    module = parse(frozen(memory))
    assert module.temperature is None
    assert module.skipped["readings"] == "not ready yet"


def test_qsfp_readings():
    module = parse(frozen(qsfp()))
    assert (module.standard, module.form) == ("SFF-8636", "QSFP28")
    assert (module.vendor, module.serial) == ("ACME OPTICS", "AO24Q00042")
    assert module.temperature == pytest.approx(41.25)
    assert module.voltage == pytest.approx(3.28)
    assert [lane.rx_power for lane in module.lanes] == pytest.approx([7e-4, 8e-4, 9e-4, 1e-3])
    assert [lane.tx_bias for lane in module.lanes] == pytest.approx([35e-3] * 4)
    assert module.thresholds["tx_power"].low_warning == pytest.approx(288.4e-6)
    assert module.thresholds["tx_bias"].high_alarm == pytest.approx(75e-3)
    assert module.skipped == {}


@pytest.mark.parametrize(
    ("at", "bit", "flag"),
    [
        (6, 7, "temperature_high_alarm"),
        (6, 4, "temperature_low_warning"),
        (7, 6, "voltage_low_alarm"),
        (9, 6, "rx_power_low_alarm/0"),
        (9, 2, "rx_power_low_alarm/1"),
        (10, 5, "rx_power_high_warning/2"),
        (12, 3, "tx_bias_high_alarm/3"),
        (13, 0, "tx_power_low_warning/1"),
        (3, 0, "rx_los/0"),
        (3, 7, "tx_los/3"),
        (4, 2, "tx_fault/2"),
        (5, 5, "tx_lol/1"),
        (5, 3, "rx_lol/3"),
    ],
)
def test_qsfp_flags(at, bit, flag):
    memory = qsfp()
    memory[LOWER][at] |= 1 << bit
    assert parse(frozen(memory)).flags == {flag}


@pytest.mark.parametrize(
    ("byte", "bit", "at", "names"),
    [
        (220, 5, 6, {"temperature"}),
        (220, 4, 7, {"voltage"}),
        (220, 2, 13, {"tx_power"}),
        (195, 3, 4, {"tx_fault"}),
        (195, 1, 3, {"tx_los"}),
        (194, 5, 5, {"tx_lol"}),
        (194, 4, 5, {"rx_lol"}),
    ],
)
def test_qsfp_flags_of_monitors_that_it_lacks(byte, bit, at, names):
    memory = qsfp()
    memory[LOWER][at] = memory[LOWER][at + (at == 13)] = 0xFF
    said = parse(frozen(memory)).flags
    memory[UPPER][byte - 128] &= ~(1 << bit)
    checked(memory[UPPER], 64, 94, 95)
    lacked = said - parse(frozen(memory)).flags
    assert lacked
    assert lacked == {flag for flag in said if any(flag.startswith(x) for x in names)}


def test_qsfp_before_2_8_alarms_of_a_sensor_that_reads_zero():
    memory = qsfp()
    memory[LOWER][1] = 7
    words(memory[LOWER], 22, 0)
    memory[LOWER][6] = 1 << 6
    module = parse(frozen(memory))
    assert module.skipped["temperature"] == "not implemented"
    assert module.flags == frozenset()


def test_copper_has_no_light():
    memory = qsfp()
    memory[UPPER][19] = 0xA0
    checked(memory[UPPER], 0, 62, 63)
    module = parse(frozen(memory))
    assert not module.optical
    assert module.lanes == ()
    assert "rx_power" not in module.thresholds
    assert module.temperature == pytest.approx(41.25)


def test_thresholds_out_of_order_are_refused():
    memory = qsfp()
    words(memory[LIMITS], 48, 363, 22387, 724, 17783)
    module = parse(frozen(memory))
    assert "rx_power" not in module.thresholds
    assert "not in order" in module.skipped["thresholds/rx_power"]
    assert "tx_power" in module.thresholds


def test_cmis_readings():
    module = parse(frozen(cmis()))
    assert (module.standard, module.form, module.firmware) == ("CMIS 5.0", "QSFP-DD", "2.7")
    assert (module.vendor, module.part, module.serial) == (
        "ACME OPTICS",
        "AO-QDD-DR4",
        "AO25D00007",
    )
    assert module.temperature == pytest.approx(48.125)
    assert module.voltage == pytest.approx(3.31)
    assert [lane.number for lane in module.lanes] == [0, 1, 2, 3]
    assert [lane.rx_power for lane in module.lanes] == pytest.approx([9e-4, 9.1e-4, 9.2e-4, 0])
    # The bias scale is 2: units of 4 µA.
    assert module.lanes[0].tx_bias == pytest.approx(60e-3)
    assert module.thresholds["tx_bias"].high_alarm == pytest.approx(150e-3)
    assert module.ber == pytest.approx({0: 2.5e-8, 1: 2.5e-7, 2: 2.5e-6, 3: 2.5e-5})


@pytest.mark.parametrize(
    ("at", "lane", "name"),
    [
        (135, 0, "tx_fault"),
        (136, 1, "tx_los"),
        (137, 2, "tx_lol"),
        (139, 3, "tx_power_high_alarm"),
        (142, 0, "tx_power_low_warning"),
        (144, 1, "tx_bias_low_alarm"),
        (147, 2, "rx_los"),
        (148, 3, "rx_lol"),
        (150, 0, "rx_power_low_alarm"),
        (151, 1, "rx_power_high_warning"),
    ],
)
def test_cmis_lane_flags(at, lane, name):
    memory = cmis()
    memory[LANES][at - 128] |= 1 << lane | 1 << 6
    # Lane 6 is not there (page 00h byte 210), so whatever its bit says is no flag.
    assert parse(frozen(memory)).flags == {f"{name}/{lane}"}


@pytest.mark.parametrize(
    ("byte", "bit", "at", "name"),
    [
        (157, 0, 135, "tx_fault"),
        (157, 1, 136, "tx_los"),
        (157, 2, 137, "tx_lol"),
        (158, 1, 147, "rx_los"),
        (158, 2, 148, "rx_lol"),
        (160, 0, 143, "tx_bias_high_alarm"),
        (160, 1, 140, "tx_power_low_alarm"),
        (160, 2, 152, "rx_power_low_warning"),
    ],
)
def test_cmis_lane_flags_that_it_lacks(byte, bit, at, name):
    memory = cmis()
    memory[LANES][at - 128] = 1
    assert parse(frozen(memory)).flags == {f"{name}/0"}
    memory[PAGE1][byte - 128] &= ~(1 << bit)
    checked(memory[PAGE1], 2, 126, 127)
    assert parse(frozen(memory)).flags == frozenset()


def test_cmis_module_flags_of_a_sensor_that_is_not_there():
    memory = cmis()
    words(memory[LOWER], 14, 0x8000, 0)
    memory[LOWER][9] = 0xFF
    assert parse(frozen(memory)).flags == frozenset()


def test_cmis_module_flags():
    memory = cmis()
    memory[LOWER][9] = 0b0010_0001
    assert parse(frozen(memory)).flags == {"temperature_high_alarm", "voltage_low_alarm"}


def test_cmis_second_bank():
    module = parse(frozen(cmis(banks=1)))
    assert [lane.number for lane in module.lanes] == [0, 1, 2, 3, *range(8, 16)]
    assert module.ber[9] == pytest.approx(2.5e-7)


def test_cmis_not_ready_has_no_lanes():
    memory = cmis()
    memory[LOWER][3] = 1 << 1
    module = parse(frozen(memory))
    assert module.lanes == ()
    assert "not ready" in module.skipped["lanes"]


@pytest.mark.parametrize("page", [PAGE1, UPPER])
def test_cmis_damaged_static_page(page):
    memory = cmis()
    memory[page][30] ^= 1
    with pytest.raises(CounterError, match="check code of page 0"):
        parse(frozen(memory))


def test_cmis_unknown_revision():
    memory = cmis()
    memory[LOWER][1] = 0x90
    with pytest.raises(CounterError, match=r"revision 9\.0 is not known"):
        parse(frozen(memory))


def test_cmis_passive_copper_is_flat():
    memory = cmis()
    memory[LOWER][2], memory[LOWER][85] = 0x80, 0x03
    module = parse({half: bytes(memory[half]) for half in (LOWER, UPPER)})
    assert not module.optical
    assert module.temperature is None
    assert module.vendor == "ACME OPTICS"


def test_cmis_ratio_that_is_none():
    memory = cmis()
    words(memory[Half(upper=True, page=0x24)], 0, 30 << 11 | 500)
    module = parse(frozen(memory))
    assert 0 not in module.ber
    assert "no bit error ratio" in module.skipped["pre_fec_ber/0"]


def test_f16_as_the_specification_has_it():
    assert f16(0) == 0
    assert f16(24 << 11 | 1) == 1
    assert f16(14 << 11 | 250) == pytest.approx(2.5e-8)
    assert f16(0xFFFF) == pytest.approx(2047e7)


@pytest.mark.parametrize(("raw", "celsius"), [(0x7D00, 125.0), (0xFFFF, -1 / 256), (0xD800, -40.0)])
def test_temperature_is_signed(raw, celsius):
    memory = qsfp()
    words(memory[LOWER], 22, raw)
    assert parse(frozen(memory)).temperature == pytest.approx(celsius)


def test_incredible_numbers_are_skipped():
    memory = qsfp()
    words(memory[LOWER], 22, 0x8000)
    words(memory[LOWER], 26, 3300)
    words(memory[LOWER], 34, 0xFFFF)
    module = parse(frozen(memory))
    assert (module.temperature, module.voltage, module.lanes[0].rx_power) == (None, None, None)
    assert set(module.skipped) == {"temperature", "voltage", "rx_power/0"}


@pytest.mark.parametrize("image", [sfp, qsfp, cmis])
def test_blank_memory(image):
    for filling, word in ((0x00, "zeros"), (0xFF, "ones")):
        memory = {half: bytes([filling]) * 128 for half in image()}
        with pytest.raises(CounterError, match=word):
            parse(memory)


@pytest.mark.parametrize("identifier", [0x01, 0x02, 0x0E, 0x12, 0x7F, 0x80])
def test_wrong_identifier(identifier):
    memory = qsfp()
    memory[LOWER][0] = identifier
    with pytest.raises(CounterError, match="identifier"):
        parse(frozen(memory))


def test_identifiers_that_contradict_each_other():
    memory = qsfp()
    memory[LOWER][0] = 0x18
    with pytest.raises(CounterError, match="page 00h names 0x11"):
        parse(frozen(memory))


def test_text_that_is_not_printable():
    memory = qsfp()
    put(memory[UPPER], 20, 16, "A\x1b[2Jé")
    checked(memory[UPPER], 0, 62, 63)
    assert parse(frozen(memory)).vendor == "A?[2J??"


def test_sample_speaks_canonical_names():
    module = parse(frozen(cmis()))
    told = sample(module, "rail0", "7", 5)
    assert {name.split("/")[0] for name in told.gauges} <= set(GAUGES)
    assert told.gauges["rx_power/0"] == pytest.approx(9e-4)
    assert told.info["firmware"] == "2.7"
    assert told.incarnation == ("7", "ACME OPTICS", "AO25D00007")


def _credible(module: Module) -> None:
    """Whatever comes out is a number that a module can have, with a name that is known."""
    assert module.temperature is None or -60 <= module.temperature <= 150
    assert module.voltage is None or 2 <= module.voltage <= 4.5
    for lane in module.lanes:
        for value in (lane.rx_power, lane.tx_power, lane.tx_bias):
            assert value is None or (math.isfinite(value) and value >= 0)
    for limits in module.thresholds.values():
        assert limits.low_alarm <= limits.low_warning < limits.high_warning <= limits.high_alarm
    assert all(0 <= ratio <= 0.5 for ratio in module.ber.values())
    assert {flag.split("/")[0] for flag in module.flags} <= set(FLAGS)
    assert (module.vendor + module.serial + module.part).isprintable()


@given(st.data())
def test_fuzz_garbage(data):
    """Any bytes at all, with a plausible identifier so that the parsers get their share."""
    halves = [*cmis(banks=1), *qsfp(), *sfp()]
    memory = {
        half: data.draw(st.binary(max_size=130) | st.binary(min_size=128, max_size=128))
        for half in data.draw(st.lists(st.sampled_from(halves), unique=True))
    }
    identifier = data.draw(st.sampled_from([0x03, 0x11, 0x18, 0x19, 0x1E]))
    for half in (LOWER, UPPER):
        if memory.get(half):
            memory[half] = bytes([identifier]) + memory[half][1:]
    with suppress(CounterError):
        _credible(parse(memory))


@given(st.data())
def test_fuzz_damage(data):
    """A sound image with some bytes changed, halves cut off or missing."""
    memory = frozen(data.draw(st.sampled_from([sfp(), sfp(external=True), qsfp(), cmis(banks=1)])))
    half = data.draw(st.sampled_from(sorted(memory)))
    damage = data.draw(st.sampled_from(["flip", "cut", "drop"]))
    if damage == "cut":
        memory[half] = memory[half][: data.draw(st.integers(0, 127))]
    elif damage == "drop":
        del memory[half]
    else:
        bad = bytearray(memory[half])
        for _ in range(data.draw(st.integers(1, 20))):
            bad[data.draw(st.integers(0, 127))] = data.draw(st.integers(0, 255))
        memory[half] = bytes(bad)
    with suppress(CounterError):
        _credible(parse(memory))


@given(st.data())
def test_fuzz_static_bytes_are_guarded(data):
    """One changed byte of identity or calibration is an error, never another number."""
    image, half, span = data.draw(
        st.sampled_from(
            [
                (sfp, LOWER, range(95)),
                (qsfp, UPPER, range(95)),
                (cmis, UPPER, range(94)),
                (cmis, PAGE1, range(2, 127)),
            ]
        )
    )
    memory = image()
    at = data.draw(st.sampled_from(span))
    old = memory[half][at]
    memory[half][at] = data.draw(st.integers(0, 255).filter(lambda value: value != old))
    with pytest.raises(CounterError):
        parse(frozen(memory))


def test_wanted_pages_end():
    """Every page that is asked for is given, and then no more are wanted."""
    memory = frozen(cmis(banks=1))
    got: dict[Half, bytes] = {}
    for _ in range(8):
        missing = cmis_map.wanted(got)
        if not missing:
            break
        got |= {half: memory[half] for half in missing}
    assert cmis_map.wanted(got) == []
    assert got == memory
