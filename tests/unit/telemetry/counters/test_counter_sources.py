"""Sources over folders and sockets that stand in for the kernel: due, on and off, reborn."""

import errno
import shutil
import struct

import counter_replies as replies
import pytest

from lab.inputs import kernel_replies as kernel
from telemetry.counters.ethdriver import GSTATS, GSTRINGS, DriverStatistics
from telemetry.counters.ethnl import Fec, Standard
from telemetry.counters.ib import HwCounters, PortCounters
from telemetry.counters.nlattr import Message
from telemetry.counters.polled import RETRY_NS, SLACK_NS, SourceOff
from telemetry.counters.rdma import RdmaStatistic
from telemetry.counters.sweep import Link, Transport
from telemetry.counters.types import Sample, Status

S = 10**9
MS = 10**6


def port(tmp_path, name, kind, **changed):
    folder = tmp_path / "mlx5_0" / "ports" / "1" / kind
    replies.folder(folder, name, **changed)
    return folder


class TestSysfs:
    def test_reads_a_port(self, tmp_path):
        port(tmp_path, "mlx5.counters", "counters")
        source = PortCounters.open("mlx5_0", 1, sysfs=tmp_path)
        got = source.read(S)
        assert got.values["rx_packets"] == 541889824
        assert (got.source, got.device, got.info["driver"]) == ("ib_port", "mlx5_0/1", "ib_port")
        assert source.status == Status("ib_port", "mlx5_0/1", on=True, reason="")

    def test_an_absent_device_is_off_and_found_when_it_comes(self, tmp_path):
        source = HwCounters.open("mlx5_0", 1, sysfs=tmp_path)
        assert source.read(S) is None
        assert source.status == Status("ib_hw", "mlx5_0/1", on=False, reason="no such device")
        folder = port(tmp_path, "mlx5.hw_counters", "hw_counters")
        assert source.read(S + RETRY_NS // 2) is None  # not tried all the time
        assert source.read(S + RETRY_NS).values["timeouts"] == 131
        shutil.rmtree(folder)
        assert source.read(S + 2 * RETRY_NS) is None
        assert not source.status.on

    def test_cached_counters_are_not_read_faster_than_they_live(self, tmp_path):
        folder = port(tmp_path, "mlx5.hw_counters", "hw_counters", lifespan=5000)
        source = HwCounters.open("mlx5_0", 1, sysfs=tmp_path)
        assert source.read(S) is not None
        assert source.period_ns == 5 * S
        assert source.read(2 * S) is None
        assert source.status.on
        assert source.read(6 * S - 1) is None
        (folder / "lifespan").write_text("10\n")
        assert source.read(6 * S) is not None
        assert source.period_ns == S
        # A timer may be early where nothing is cached for so long.
        assert source.read(7 * S - SLACK_NS - 1) is None
        assert source.read(7 * S - SLACK_NS) is not None

    def test_a_lifespan_that_no_kernel_takes(self, tmp_path):
        port(tmp_path, "mlx5.hw_counters", "hw_counters", lifespan=10_001)
        source = HwCounters.open("mlx5_0", 1, sysfs=tmp_path)
        assert source.read(S) is None
        assert source.status.reason == "unreadable: lifespan of 10001 ms"

    def test_a_reborn_device_has_another_incarnation(self, tmp_path):
        folder = port(tmp_path, "mlx5.hw_counters", "hw_counters")
        source = HwCounters.open("mlx5_0", 1, sysfs=tmp_path)
        first = source.read(S)
        assert source.read(2 * S).incarnation == first.incarnation
        folder.rename(tmp_path / "kept")  # else its inode may be given again
        port(tmp_path, "rxe.hw_counters", "hw_counters")
        again = source.read(3 * S)
        assert again.incarnation != first.incarnation
        assert again.info["driver"] == "rxe"

    def test_port_counters_without_a_pma(self, tmp_path):
        port(tmp_path, "mlx5.counters", "counters")
        for file in (tmp_path / "mlx5_0/ports/1/counters").iterdir():
            file.write_text("N/A (no PMA)\n")
        source = PortCounters.open("mlx5_0", 1, sysfs=tmp_path)
        assert source.read(S) is None
        assert source.status.reason == "no number: b'N/A (no PMA)'"

    def test_an_unreadable_file_is_named(self, tmp_path):
        folder = port(tmp_path, "mlx5.counters", "counters")
        (folder / "link_downed").write_text("many\n")
        (folder / "symbol_error").unlink()
        (folder / "symbol_error").mkdir()  # reading a directory is an OSError
        source = PortCounters.open("mlx5_0", 1, sysfs=tmp_path)
        got = source.read(S)
        assert set(got.skipped) == {"link_downed", "symbol_error"}
        assert not {"link_downed", "symbol_errors"} & set(got.values)
        assert source.status.on
        assert "link_downed: no number" in source.status.reason

    def test_an_unknown_driver(self, tmp_path):
        folder = tmp_path / "x" / "ports" / "1" / "hw_counters"
        folder.mkdir(parents=True)
        (folder / "widgets").write_text("1\n")
        source = HwCounters.open("x", 1, sysfs=tmp_path)
        assert source.read(S) is None
        assert source.status.reason == "no table for a driver with these counters"


class Kernel:
    """Stands in for `Netlink`: answers with what a test gives it, or raises it."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def ask(self, kind, payload, *, dump=False):
        self.asked.append((kind, bytes(payload), dump))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [Message(kind, 0, 1, memoryview(part)) for part in answer]

    def generic(self, family, payload):
        assert family == "ethtool"
        return self.ask(family, payload)

    def close(self):
        pass


GENL = struct.pack("=BBH", 30, 1, 0)


class TestEthtool:
    def test_the_request_names_the_device_and_asks_for_statistics(self):
        fake = Kernel([GENL + replies.FEC])
        source = Fec.open("rail0", fake)
        got = source.read(S)
        assert got.values["fec_corrected"] == 122
        assert got.histograms["fec_errors"][-1].low == 4
        assert (got.incarnation, got.info) == (7, {"fec": "RS"})
        request = fake.asked[0][1]
        assert request == struct.pack("=BBH", 29, 1, 0) + kernel.nest(
            1, kernel.attribute(2, b"rail0\0"), kernel.u32(3, 5)
        )

    def test_all_groups_are_asked_for(self):
        fake = Kernel([GENL + replies.STANDARD])
        assert Standard.open("rail0", fake).read(S).values["crc_errors"] == 3
        bitset = kernel.nest(3, kernel.attribute(1, b""), kernel.u32(2, 4), kernel.u32(4, 0b1111))
        assert fake.asked[0][1].endswith(bitset)

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (OSError(errno.EOPNOTSUPP, ""), "not supported by the driver"),
            (OSError(errno.ENODEV, ""), "no such device"),
            (OSError(errno.EPERM, ""), "Operation not permitted"),
            (SourceOff("this kernel has no ethtool netlink"), "this kernel has no ethtool netlink"),
            ([GENL[:2]], "unreadable: generic netlink: no header"),
            ([GENL + kernel.header(1)[:-3]], "unreadable: netlink: attribute of 24 bytes in 21"),
            ([GENL + kernel.header(1)], "the driver counts nothing of FEC"),
        ],
    )
    def test_off_and_why(self, answer, reason):
        source = Fec.open("rail0", Kernel(answer))
        assert source.read(S) is None
        assert source.status == Status("ethtool_fec", "rail0", on=False, reason=reason)


def rdma_devices(*names):
    return [
        kernel.u32(1, index) + kernel.attribute(2, name.encode() + b"\0")
        for index, name in enumerate(names)
    ]


RDMA_COUNTERS = {"out_of_sequence": 1, "packet_seq_err": 2, "local_ack_timeout_err": 3, "new": 4}


class TestRdma:
    def test_finds_the_device_once(self):
        reply = [kernel.rdma_reply(RDMA_COUNTERS)]
        fake = Kernel(rdma_devices("mlx5_1", "mlx5_0"), reply, reply)
        source = RdmaStatistic.open("mlx5_0", 1, fake)
        assert source.read(S).values == {
            "out_of_sequence": 1,
            "packet_seq_err": 2,
            "timeouts": 3,
        }
        assert source.read(2 * S).incarnation == (1, 0)
        kinds = [(kind & 1023, dump) for kind, _, dump in fake.asked]
        assert kinds == [(1, True), (17, False), (17, False)]
        assert fake.asked[1][1] == kernel.u32(1, 1) + kernel.u32(3, 1)

    def test_an_index_that_now_is_another_device(self):
        mine = kernel.rdma_reply(RDMA_COUNTERS)
        other = kernel.rdma_reply(RDMA_COUNTERS, name=b"mlx5_9\0")
        fake = Kernel(
            rdma_devices("mlx5_0"), [mine], [other], rdma_devices("mlx5_9", "mlx5_0"), [mine]
        )
        source = RdmaStatistic.open("mlx5_0", 1, fake)
        assert source.read(S).incarnation == (0, 0)
        assert source.read(2 * S).incarnation == (1, 0)

    def test_a_reloaded_driver_that_got_its_index_again(self, tmp_path):
        reply = [kernel.rdma_reply(RDMA_COUNTERS)]
        fake = Kernel(rdma_devices("mlx5_0"), reply, reply)
        source = RdmaStatistic.open("mlx5_0", 1, fake, sysfs=tmp_path)
        (tmp_path / "mlx5_0").mkdir()
        first = source.read(S).incarnation
        (tmp_path / "mlx5_0").rename(tmp_path / "kept")
        (tmp_path / "mlx5_0").mkdir()
        assert source.read(2 * S).incarnation != first

    def test_absent(self):
        source = RdmaStatistic.open("mlx5_0", 1, Kernel(rdma_devices("mlx5_1")))
        assert source.read(S) is None
        assert source.status.reason == "no such device"


class Driver:
    """Stands in for `Ioctl`."""

    def __init__(self, driver, numbers):
        self.name, self.numbers, self.index = driver, dict(numbers), 5
        self.buffer = memoryview(bytearray(1 << 16))
        self.named = 0
        self.more = 0

    def ifindex(self, netdev):
        return self.index

    def driver(self, netdev):
        return self.name

    def count(self, netdev):
        return len(self.numbers)

    def ask(self, netdev, request):
        (command,) = struct.unpack_from("=I", request)
        if command == GSTRINGS:
            self.named += 1
            names = kernel.gstrings(self.numbers)
            answer = struct.pack("=III", GSTRINGS, 1, len(self.numbers)) + names
        else:
            assert command == GSTATS
            count = len(self.numbers) + self.more
            answer = struct.pack("=II", GSTATS, count) + kernel.gstats(self.numbers.values())
        self.buffer[: len(answer)] = answer

    def close(self):
        pass


class TestDriver:
    def test_names_are_read_again_when_their_number_changes(self):
        driver = Driver("ena", replies.fixture("ena.ethtool"))
        source = DriverStatistics.open("rail0", driver)
        assert source.read(S).values["allowance_exceeded"] == 120
        driver.numbers["bw_in_allowance_exceeded"] += 5
        assert source.read(2 * S).values["allowance_exceeded"] == 125
        assert driver.named == 1
        driver.numbers = {"new": 1, **driver.numbers}  # every position moves
        assert source.read(3 * S).values["allowance_exceeded"] == 125
        assert driver.named == 2

    def test_statistics_that_change_between_count_and_reading(self):
        driver = Driver("ena", replies.fixture("ena.ethtool"))
        source = DriverStatistics.open("rail0", driver)
        driver.more = 8
        assert source.read(S) is None
        assert not source.status.on

    def test_a_new_device_of_the_name(self):
        driver = Driver("ena", replies.fixture("ena.ethtool"))
        source = DriverStatistics.open("rail0", driver)
        source.read(S)
        driver.index, driver.name = 6, "ice"
        driver.numbers = replies.fixture("ice.ethtool")
        got = source.read(2 * S)
        assert (got.incarnation, got.values["mac_local_faults"]) == (6, 11)

    def test_an_unknown_driver(self):
        source = DriverStatistics.open("rail0", Driver("ne2k_pci", {"x": 1}))
        assert source.read(S) is None
        assert source.status.reason == "no table for the driver ne2k_pci"


class Made:
    """A source made elsewhere."""

    period_ns = S

    def __init__(self, name, counter):
        self.status = Status(name, "d", on=True)
        self.counter, self.value = counter, 0

    def read(self, now_ns):
        self.value += 1
        return Sample(self.status.source, "d", 1, now_ns, values={self.counter: self.value})

    def close(self):
        pass


def test_a_link_asks_sysfs_only_while_netlink_is_off():
    best, other = Made("rdma_stat", "timeouts"), Made("ib_hw", "timeouts")
    link = Link([Made("link_stats", "rx_bytes")], Transport(best, other))
    link.read(S)
    assert link.read(2 * S).steps["timeouts"].increase == 1
    assert other.value == 0
    best.status = Status("rdma_stat", "d", on=False, reason="no such device")
    best.read = lambda now_ns: None
    link.read(3 * S)
    reading = link.read(4 * S)
    assert reading.steps["timeouts"].increase == 1
    assert [status.source for status in reading.statuses] == ["link_stats", "rdma_stat", "ib_hw"]


def test_a_link_counts_port_events_beside_link_downed():
    link = Link([Made("ib_port", "link_downed")])
    link.read(S)
    link.port_down()
    reading = link.read(2 * S)
    assert (reading.downs.count, reading.downs.exact) == (1, True)
    assert link.read(3 * S).downs.exact  # its event may be on the way
    reading = link.read(4 * S)
    assert (reading.downs.count, reading.downs.exact) == (3, False)
