"""devlink health: messages as the kernel sends them, encoded and decoded by pyroute2."""

import errno
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.devlink import devlinkcmd

from telemetry.counters.devlink import HealthDump, HealthSource, Reporter, of_netdev, reporter
from telemetry.counters.types import CounterError

INNER = {
    "DEVLINK_ATTR_HEALTH_REPORTER_NAME": "tx",
    "DEVLINK_ATTR_HEALTH_REPORTER_STATE": 1,
    "DEVLINK_ATTR_HEALTH_REPORTER_ERR_COUNT": 3,
    "DEVLINK_ATTR_HEALTH_REPORTER_RECOVER_COUNT": 2,
    "DEVLINK_ATTR_HEALTH_REPORTER_GRACEFUL_PERIOD": 500,
    "DEVLINK_ATTR_HEALTH_REPORTER_AUTO_RECOVER": 1,
}


def message(inner=INNER, **top):
    """Through the wire format: what comes out is what a socket would give."""
    sent = devlinkcmd()
    sent["cmd"] = 52
    sent["attrs"] = [
        ("DEVLINK_ATTR_BUS_NAME", "pci"),
        ("DEVLINK_ATTR_DEV_NAME", "0000:3b:00.0"),
        *((f"DEVLINK_ATTR_{name}", value) for name, value in top.items()),
        ("DEVLINK_ATTR_HEALTH_REPORTER", {"attrs": list(inner.items())}),
    ]
    sent.encode()
    got = devlinkcmd(bytes(sent.data))
    got.decode()
    return got["attrs"]


def test_reporter():
    assert reporter(message(PORT_INDEX=0, PORT_NETDEV_NAME="rail0")) == Reporter(
        "pci/0000:3b:00.0", 0, "rail0", "tx", healthy=False, errors=3, recoveries=2
    )


def test_reporter_of_the_device():
    told = reporter(message(INNER | {"DEVLINK_ATTR_HEALTH_REPORTER_STATE": 0}))
    assert told.port is None
    assert told.healthy


@pytest.mark.parametrize("missing", [*INNER][:4])
def test_what_is_missing_is_an_error(missing):
    with pytest.raises(CounterError, match=missing):
        reporter(message({name: value for name, value in INNER.items() if name != missing}))


def test_unknown_state():
    with pytest.raises(CounterError, match="state 9"):
        reporter(message(INNER | {"DEVLINK_ATTR_HEALTH_REPORTER_STATE": 9}))


def test_no_reporter_in_it():
    with pytest.raises(CounterError, match="without a reporter"):
        reporter([("DEVLINK_ATTR_BUS_NAME", "pci")])


@given(st.binary(max_size=200))
def test_fuzz(data):
    """Any bytes as attributes of the message: an error, or a reporter with counts."""
    raw = (20 + len(data)).to_bytes(4, "little") + bytes(12) + bytes([52, 1, 0, 0]) + data
    got = devlinkcmd(raw)
    try:
        got.decode()
    except Exception:
        return
    with suppress(CounterError):
        told = reporter(got["attrs"])
        assert told.errors >= 0


class Dump:
    def __init__(self, *reporters, error=None):
        self.reporters, self.error = list(reporters), error

    def read(self):
        if self.error:
            raise self.error
        return self.reporters

    def close(self):
        pass


@pytest.fixture
def sysfs(tmp_path):
    bus = tmp_path / "bus" / "pci"
    function = tmp_path / "devices" / "0000:3b:00.0"
    for folder in (bus, function, tmp_path / "net" / "rail0"):
        folder.mkdir(parents=True)
    (function / "subsystem").symlink_to(bus)
    (tmp_path / "net" / "rail0" / "device").symlink_to(function)
    return tmp_path / "net"


def test_source_adds_up_its_own_reporters(sysfs):
    mine = "pci/0000:3b:00.0"
    dump = Dump(
        Reporter(mine, None, "", "fw", healthy=True, errors=1, recoveries=1),
        Reporter(mine, 0, "rail0", "tx", healthy=False, errors=3, recoveries=2),
        Reporter(mine, 1, "rail1", "tx", healthy=True, errors=50, recoveries=50),
        Reporter("pci/0000:5e:00.0", None, "", "fw", healthy=True, errors=9, recoveries=9),
    )
    source = HealthSource("rail0", dump=dump, sysfs=sysfs)
    told = source.read(4)
    assert told.values == {"health_errors": 4, "health_recoveries": 3}
    assert told.info == {"health/tx": "error"}
    assert source.status.reason == "tx: in error, not recovered"
    assert len(of_netdev(dump.reporters, mine, "rail1")) == 2


@pytest.mark.parametrize(
    ("dump", "text"),
    [
        (Dump(), "no health reporters"),
        (Dump(error=OSError(errno.ENOENT, "x")), "no devlink"),
        (Dump(error=OSError(errno.EPERM, "refused")), "refused"),
        (Dump(error=CounterError("bent")), "bent"),
    ],
)
def test_source_off(sysfs, dump, text):
    source = HealthSource("rail0", dump=dump, sysfs=sysfs)
    assert source.read(1) is None
    assert text in source.status.reason


def test_virtual_device_is_off(tmp_path):
    source = HealthSource("rail0", dump=Dump(), sysfs=tmp_path)
    assert source.read(1) is None
    assert source.status.reason == "no device behind it"


def test_this_kernel():
    """A real dump where the kernel has devlink, else a clear refusal."""
    try:
        dump = HealthDump()
    except OSError:
        pytest.skip("no devlink in this kernel")
    try:
        assert all(each.name for each in dump.read())
    finally:
        dump.close()
