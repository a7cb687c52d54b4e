"""Verdicts of silence wait for the kernel's receive path; nothing else does."""

import contextlib

import pytest
from engine_host import MS, SEC, I
from engine_host import Host as Simulated
from hypothesis import given
from hypothesis import strategies as st

from fabricd.detect.receive_path import (
    AGAIN_NS,
    LONGEST_NS,
    Queue,
    Reading,
    ReceivePath,
    SoftnetError,
    parse,
)
from fabricd.procfs.softnet import SoftnetStat
from lab.inputs.kernel_replies import softnet_stat
from telemetry.events import LinkState as S

LINK = 10 * MS
"""The link interval."""


# -- the file --------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [13, 15])
def test_backlogs_of_each_cpu(columns):
    data = softnet_stat((0x22DDAA2C, 0), (7, 0x1F), columns=columns)
    assert parse(data) == [Queue(0, 0x22DDAA2C, 0), Queue(1, 7, 0x1F)]


def test_a_cpu_that_is_offline_has_no_line():
    lines = softnet_stat((1, 0), (2, 0), (3, 4)).splitlines(keepends=True)
    assert [queue.cpu for queue in parse(lines[0] + lines[2])] == [0, 2]


@pytest.mark.parametrize("columns", [1, 9, 10, 11, 12])
def test_older_kernels_do_not_tell_the_length(columns):
    with pytest.raises(SoftnetError, match="does not tell"):
        parse(softnet_stat((1, 2), columns=columns))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        softnet_stat((1, 0))[:-1],
        softnet_stat((1, 0)) * 2,
        softnet_stat((1, 0)).replace(b"00000001", b"0x000001"),
        softnet_stat((1, 0)).replace(b"00000001", b"-0000001"),
        softnet_stat((1, 0)).replace(b" ", b"\t"),
        softnet_stat((1, 0)).replace(b"1 0", b" 10", 1),
        softnet_stat((1, 0)) + softnet_stat((1, 0), columns=13),
        b"cpu processed\n",
    ],
)
def test_nonsense_is_refused(data):
    with pytest.raises(SoftnetError):
        parse(data)


@given(st.binary(max_size=400))
def test_fuzz(data):
    with contextlib.suppress(SoftnetError):
        parse(data)


def test_the_open_file_is_read_anew_each_time(tmp_path):
    path = tmp_path / "softnet_stat"
    path.write_bytes(softnet_stat((1, 0)))
    source = SoftnetStat(path)
    assert source.note == "read"
    path.write_bytes(softnet_stat(*[(9, 3)] * 700))
    found = source.read()
    assert found is not None
    assert found.queues[699] == Queue(699, 9, 3), "more than one read of it"
    source.close()
    assert source.read() is None


@pytest.mark.parametrize("data", [None, b"nonsense\n", softnet_stat((1, 0), columns=11)])
def test_what_cannot_be_read_switches_the_source_off(tmp_path, data):
    path = tmp_path / "softnet_stat"
    if data is not None:
        path.write_bytes(data)
    source = SoftnetStat(path)
    assert source.note != "read"
    assert source.read() is None


def test_nonsense_that_comes_later_too(tmp_path):
    path = tmp_path / "softnet_stat"
    path.write_bytes(softnet_stat((1, 0)))
    source = SoftnetStat(path)
    path.write_bytes(b"?\n")
    assert source.read() is None
    assert "not understood" in source.note


# -- the rule --------------------------------------------------------------------------------------


class Kernel:
    """Backlogs of CPU 0, 1 and so on, at a time that is set."""

    def __init__(self):
        self.now = SEC
        self.queues = [(100, 0), (100, 0)]
        self.reads = 0

    def read(self):
        self.reads += 1
        return Reading(self.now, [Queue(cpu, *both) for cpu, both in enumerate(self.queues)])


class Waits:
    """The rule with such a kernel."""

    def __init__(self):
        self.kernel = Kernel()
        self.path = ReceivePath(self.kernel.read)

    def ask(self, age=0, key="link 0", after=0):
        self.kernel.now += after
        self.path.begin()
        answer = self.path.ask(key, self.kernel.now - age, LINK)
        self.path.end()
        return answer


@pytest.fixture
def waits():
    return Waits()


def test_nothing_waits_where_no_backlog_is(waits):
    assert waits.ask() == (False, "")
    assert (waits.path.again_ns, waits.path.held, waits.kernel.reads) == (None, 0, 1)
    waits.kernel.queues = [(100, 50), (100, 0)]
    assert waits.ask(after=3 * MS) == (False, ""), "a verdict stays one"
    assert waits.kernel.reads == 1, "and is not asked about again"


def test_all_silences_of_one_look_share_a_reading(waits):
    waits.path.begin()
    for key in range(5):
        assert not waits.path.ask(key, waits.kernel.now, LINK).wait
    assert waits.kernel.reads == 1


def test_waits_until_all_is_delivered_and_the_prober_has_said_so(waits):
    waits.kernel.queues = [(100, 0), (100, 5)]
    assert waits.ask() == (True, "the kernel's receive path is behind on CPU 1")
    assert waits.path.again_ns == waits.kernel.now + AGAIN_NS
    waits.kernel.queues = [(100, 9), (104, 90)]
    assert waits.ask(after=MS).wait, "one of the five is missing"
    waits.kernel.queues = [(100, 9), (105, 99)]
    assert waits.ask(after=MS).wait, "delivered, and the table may be of before"
    assert waits.ask(after=MS, age=2 * MS).wait
    assert waits.ask(after=LINK // 4, age=MS + 1).wait, "written a moment after the delivery"
    assert waits.ask(after=MS, age=MS) == (False, "")
    assert (waits.path.again_ns, waits.path.held) == (None, 1)


def test_the_count_of_packets_wraps(waits):
    waits.kernel.queues = [(0xFFFF_FFFE, 5)]
    assert waits.ask().wait
    waits.kernel.queues = [(0xFFFF_FFFF, 4)]
    assert waits.ask(after=30 * MS).why.endswith("behind on CPU 0")
    waits.kernel.queues = [(2, 1)]
    assert waits.ask(after=MS).why.endswith("behind on CPU 0")
    waits.kernel.queues = [(3, 1)]
    waits.ask(after=MS)
    assert not waits.ask(after=LINK).wait


@pytest.mark.parametrize("queues", [[(100, 0), (100, 0)], [(100, 0)]])
def test_a_backlog_that_was_dropped_or_whose_cpu_went_is_none(waits, queues):
    waits.kernel.queues = [(100, 0), (100, 5)]
    assert waits.ask().wait
    waits.kernel.queues = queues
    waits.ask(after=MS)
    assert not waits.ask(after=LINK).wait


def test_a_late_look_at_an_old_table_waits_for_the_next(waits):
    """The backlog may have come and gone since the prober wrote."""
    assert waits.ask(age=LINK + 1).wait
    assert waits.path.held == 0, "the kernel was not behind"
    assert waits.ask(after=MS, age=LINK + 1 + MS).wait
    assert not waits.ask(after=LINK).wait


def test_no_stall_is_waited_for_longer_than_the_longest(waits):
    waits.kernel.queues = [(100, 3), (100, 5)]
    began, asked = waits.kernel.now, 0
    while (answer := waits.ask()).wait:
        asked += 1
        assert waits.path.again_ns >= waits.kernel.now + AGAIN_NS
        waits.kernel.now = waits.path.again_ns
    assert answer.why == "the kernel's receive path is stalled on CPU 0, 1"
    assert LONGEST_NS <= waits.kernel.now - began <= LONGEST_NS * 1.1
    assert asked < 120
    assert waits.ask(after=SEC) == answer, "the reason stays"


def test_a_silence_that_ended_is_forgotten(waits):
    waits.kernel.queues = [(100, 5)]
    assert waits.ask(key="link 0").wait
    waits.ask(key="link 1", after=LONGEST_NS)
    assert waits.ask(key="link 0").wait, "a new one, with a wait of its own"
    waits.path.reset()
    assert waits.ask(key="link 0").wait
    assert waits.path.held == 4


def test_without_a_source_nothing_waits(waits):
    waits.path.read = lambda: None
    assert waits.ask(age=SEC) == (False, "")
    assert waits.path.held == 0


# -- the engine ------------------------------------------------------------------------------------


class Host(Simulated):
    """With such a kernel; looks each 10 ms, and where the engine asks for it."""

    def __init__(self):
        super().__init__()
        self.kernel = Kernel()
        self.engine.receive_path.read = self._read
        self.run(SEC)

    def _read(self):
        self.kernel.now = self.now
        return self.kernel.read()

    def until_told(self, silence, *, waits):
        """Silence for so long that it is told, or would be but for the kernel."""
        self.silence(*silence)
        for _ in range(60):
            self.run(10 * MS)
            if self.changes if not waits else self.engine.receive_path.held:
                return
        raise AssertionError("not told")


def told(host):
    return [(c.netdev, c.peer, c.transition.to_state) for c in host.changes]


@pytest.fixture
def host():
    made = Host()
    made.changes.clear()
    return made


def test_an_ordinary_black_hole_is_told_as_soon_as_ever(host):
    plain = Simulated()
    plain.run(SEC)
    plain.changes.clear()
    for each in (host, plain):
        begun = each.now
        Host.until_told(each, [0], waits=False)
        each.took = each.now - begun
    assert told(host) == told(plain) == [("rail0", "", S.DOWN)]
    assert host.took == plain.took
    assert (host.engine.receive_path.held, host.kernel.reads) == (0, 1)


def test_a_link_is_not_blamed_while_packets_wait_in_the_kernel(host):
    host.kernel.queues = [(100, 40), (100, 0)]
    host.until_told([0], waits=True)
    assert host.outcome.due_at == host.now + AGAIN_NS, "asked again very soon"
    for _ in range(15):
        host.run(MS, step=MS)
    assert not host.changes
    # Now the late packets arrive.
    host.kernel.queues = [(140, 0), (100, 0)]
    host.restore()
    host.run(2 * SEC)
    assert not host.changes
    assert host.engine.receive_path.held == 1


@pytest.mark.parametrize("silence", [[0], [(0, "a")]])
def test_what_is_silent_after_the_delivery_is_told(host, silence):
    host.kernel.queues = [(100, 40), (100, 0)]
    host.until_told(silence, waits=True)
    host.run(20 * MS, step=MS)
    assert not host.changes
    host.kernel.queues = [(140, 3), (100, 0)]
    host.run(MS, step=MS)
    assert not host.changes, "the table may be of before"
    host.run(4 * MS, step=MS)
    peer = "" if silence == [0] else "a"
    assert told(host) == [("rail0", peer, S.DOWN)]
    assert "receive path" not in host.changes[0].transition.reason


def test_a_stall_that_lasts_is_told_with_the_verdict(host):
    host.kernel.queues = [(100, 40), (100, 0)]
    host.until_told([0], waits=True)
    begun = host.now
    while S.DOWN not in host.states():
        host.run(MS, step=MS)
    assert LONGEST_NS <= host.now - begun <= LONGEST_NS + 2 * MS
    assert [state for _, _, state in told(host)] == [S.SUSPECT, S.DOWN]
    assert host.changes[0].transition.reason.endswith("receive path is behind on CPU 0")
    assert host.changes[1].transition.reason.endswith("receive path is stalled on CPU 0")


def test_a_path_s_wait_goes_on_while_the_link_alone_is_judged(host):
    """The other peers are silent for a while, again and again."""
    host.kernel.queues = [(100, 40), (100, 0)]
    host.until_told([(0, "a")], waits=True)
    begun = host.now
    while host.now - begun < 2 * LONGEST_NS and ("rail0", "a", S.DOWN) not in told(host):
        host.silence((0, "b"), (0, "c"))
        host.run(200 * MS)
        host.silent = {index: at for index, at in host.silent.items() if index == 0}
        host.run(300 * MS)
    assert {(netdev, peer) for netdev, peer, to in told(host) if to is S.DOWN} == {("rail0", "a")}
    assert host.now - begun <= LONGEST_NS + 500 * MS


def test_what_peers_do_not_hear_waits_for_nothing(host):
    host.kernel.queues = [(100, 40), (100, 0)]
    views = host.views

    def unheard():
        return [v._replace(tx_missed=9, acked_ns=SEC) if v.link == 0 else v for v in views()]

    host.views = unheard
    host.run(200 * MS)
    assert host.states()[0] is S.DOWN
    assert host.kernel.reads == 0


def test_a_table_that_is_too_old_to_judge_asks_for_nothing(host):
    host.kernel.queues = [(100, 40), (100, 0)]
    host.until_told([0], waits=True)
    late = host.engine.evaluate(host.views(), host.now + I + 200 * MS, as_of=host.now)
    assert late.due_at is None or late.due_at > host.now + AGAIN_NS
    assert not host.changes
