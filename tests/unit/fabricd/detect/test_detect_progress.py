"""A full queue is no silence: verdicts wait while payload moves, and only then."""

import contextlib

import pytest
from engine_host import MS, SEC, I
from engine_host import Host as Simulated
from hypothesis import given
from hypothesis import strategies as st

from fabricd.detect.progress import (
    ALONE_NS,
    BASELINE_NS,
    LEAST_BYTES,
    LONGEST_NS,
    RECENT_NS,
    ByteCounts,
    ByteProgress,
    NetdevError,
    Reading,
    parse,
)
from fabricd.detect.silence import Rules
from fabricd.probes.records import Direction
from fabricd.procfs.netdev_bytes import NetdevBytes
from telemetry.events import LinkState as S

RX, TX = Direction.RX, Direction.TX
LINK = 10 * MS
FULL = 7_500_000
"""Bytes a second of a link of 60 Mbit/s."""
PROBES = 107_000
"""Bytes a second of probes on a link with ten peers each 3 ms, the most there are."""

HEADER = (
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop"
    " fifo colls carrier compressed\n"
)


def line(name, rx, tx):
    return f"{name:>6}: {rx:7} 5 0 0 0 0 0 0 {tx:8} 6 0 0 0 0 0 0\n"


# -- the file --------------------------------------------------------------------------------------


def test_byte_counters_of_the_links_alone():
    data = HEADER + line("lo", 1, 2) + line("rail0", 30, 40) + line("rail.10", 2**63, 9)
    assert parse(data.encode(), ["rail0", "rail.10", "rail9"]) == {
        "rail0": ByteCounts(30, 40), "rail.10": ByteCounts(2**63, 9),
    }  # fmt: skip


def test_kernels_that_leave_no_room_after_the_colon():
    data = HEADER + line("rail0", 30, 40).replace(": ", ":").replace(":     30", ":30")
    assert parse(data.encode(), ["rail0"]) == {"rail0": ByteCounts(30, 40)}


@pytest.mark.parametrize(
    "data", ["", "rail0: 1 2\n", HEADER + "rail0: 1 2 3\n", HEADER + line("rail0", "x", 1)]
)
def test_nonsense_is_refused(data):
    with pytest.raises(NetdevError):
        parse(data.encode(), ["rail0"])


@given(st.binary(max_size=300), st.booleans())
def test_fuzz(data, headed):
    with contextlib.suppress(NetdevError):
        parse(HEADER.encode() * headed + data, ["rail0", ""])


def test_the_open_file_is_read_anew_each_time(tmp_path):
    path = tmp_path / "dev"
    path.write_text(HEADER + line("rail0", 1, 2))
    source = NetdevBytes(lambda: ["rail0"], path)
    assert source.read().counts == {"rail0": ByteCounts(1, 2)}
    path.write_text(HEADER + line("rail0", 3, 4) * 700)
    assert source.read().counts == {"rail0": ByteCounts(3, 4)}
    path.write_text("?")
    assert source.read() is None
    assert "not understood" in source.note
    path.write_text(HEADER + line("rail0", 3, 4))
    assert source.read() is None, "it stays off"


def test_a_source_that_is_missing_is_told(tmp_path):
    source = NetdevBytes(lambda: ["rail0"], tmp_path / "none")
    assert source.read() is None
    assert "No such file" in source.note


def test_this_kernel_s_file():
    assert parse(NetdevBytes(lambda: ["lo"])._whole(), ["lo"])["lo"].rx >= 0


# -- the rule --------------------------------------------------------------------------------------


class Device:
    """rail0 and rail1; ``rate`` is what rail0 moves by direction, bytes a second."""

    def __init__(self):
        self.now = SEC
        self.rate = [0, 0]
        self.total = [10**6, 10**6]
        self.reads = 0

    def run(self, ns):
        self.now += ns
        self.total = [t + r * ns // SEC for t, r in zip(self.total, self.rate, strict=True)]

    def read(self):
        self.reads += 1
        both = ByteCounts(*self.total)
        return Reading(self.now, {"rail0": both, "rail1": ByteCounts(0, 0)})


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def progress(device):
    made = ByteProgress(device.read, ("rail0", "rail1"))
    made.begin(device.now)
    made.end()
    return made


def look(progress, device, *, after=0, way=RX, link=0, due=False):
    """One evaluation; ``due``: the silence would be a verdict."""
    device.run(after)
    progress.begin(device.now)
    progress.note(LINK)
    answer = progress.ask("silence", link, way, LINK) if due else None
    progress.end()
    return answer


def three_misses(progress, device, **more):
    """As the prober calls them: 15, 25 and 35 ms after the last packet; the answer to the third."""
    look(progress, device, after=15 * MS, **more)
    look(progress, device, after=10 * MS, **more)
    return look(progress, device, after=10 * MS, due=True, **more)


@pytest.mark.parametrize("way", [RX, TX])
@pytest.mark.parametrize("rate", [0, PROBES])
def test_no_verdict_waits_where_no_payload_moves(progress, device, way, rate):
    device.rate = [rate, rate]
    for _ in range(3):
        look(progress, device, after=BASELINE_NS)
    assert three_misses(progress, device, way=way) == (False, "")
    assert (progress.held, progress.again_ns) == (0, None)


@pytest.mark.parametrize("way", [RX, TX])
def test_a_verdict_waits_while_payload_moves(progress, device, way):
    device.rate = [FULL if w is way else 0 for w in Direction]
    answer = three_misses(progress, device, way=way)
    assert answer == (True, "payload arrives" if way is RX else "payload leaves")
    assert progress.again_ns == device.now + LINK // 2
    assert progress.held == 1
    assert not look(progress, device, way=RX if way is TX else TX, due=True).wait, "the other way"
    assert not look(progress, device, way=way, link=1, due=True).wait, "another link"


def test_payload_in_few_large_packets_is_seen(progress, device):
    """64 KB offload packets at 60 Mbit/s: one each 8.7 ms."""
    for _ in range(3):
        look(progress, device, after=10 * MS)
        device.total[RX] += 65_000
    assert look(progress, device, after=5 * MS, due=True).wait


def test_payload_that_ended_with_the_silence_delays_nothing(progress, device):
    """A black hole of what a filled link receives: nothing arrives from its beginning on."""
    device.rate = [FULL, 0]
    for _ in range(100):
        look(progress, device, after=10 * MS)
    device.rate = [0, 0]
    assert three_misses(progress, device) == (False, "")


def test_a_wait_ends_when_payload_does(progress, device):
    device.rate = [FULL, 0]
    assert three_misses(progress, device).wait
    device.rate = [0, 0]
    began = device.now
    while look(progress, device, after=5 * MS, due=True).wait:
        pass
    assert device.now - began <= 3 * LINK + 5 * MS
    device.rate = [FULL, 0]
    assert not look(progress, device, after=10 * MS, due=True).wait, "a verdict stays one"


def test_what_left_a_while_ago_explains_what_peers_report_late(progress, device):
    device.rate = [0, FULL]
    three_misses(progress, device, way=TX)
    device.rate = [0, 0]
    began = device.now
    while look(progress, device, after=5 * MS, way=TX, due=True).wait:
        pass
    assert RECENT_NS[TX] - LINK <= device.now - began <= RECENT_NS[TX] + LINK


@pytest.mark.parametrize("way", [RX, TX])
def test_no_silence_is_explained_for_longer_than_the_longest(progress, device, way):
    device.rate = [FULL, FULL]
    assert three_misses(progress, device, way=way).wait
    began = device.now
    while (answer := look(progress, device, after=5 * MS, way=way, due=True)).wait:
        pass
    assert LONGEST_NS[way] <= device.now - began <= LONGEST_NS[way] + 10 * MS
    assert answer.why.startswith("though bytes")
    assert look(progress, device, after=5 * MS, way=way, due=True) == answer, "the reason stays"


@pytest.mark.parametrize("kept", [RX, TX])
def test_the_wait_of_a_silence_that_is_kept_goes_on(progress, device, kept):
    device.rate = [FULL, FULL]
    three_misses(progress, device)
    began = device.now
    while device.now - began < LONGEST_NS[RX]:
        device.run(5 * MS)
        progress.begin(device.now)
        progress.note(LINK)
        progress.keep("silence", kept)
        progress.end()
    assert look(progress, device, after=5 * MS, due=True).wait is (kept is TX), "each way apart"


def test_without_a_note_of_the_right_age_a_loaded_link_waits_for_one_interval(progress, device):
    device.rate = [FULL, 0]
    device.run(BASELINE_NS - MS)
    assert look(progress, device, due=True).wait, "it moved payload; whether it does now, is open"
    device.rate = [0, 0]
    took = device.now
    while look(progress, device, after=5 * MS, due=True).wait:
        pass
    assert device.now - took <= 2 * LINK


def test_a_device_that_is_another_one_or_gone_explains_nothing(progress, device):
    device.rate = [FULL, 0]
    look(progress, device, after=10 * MS)
    device.total = [0, 0]
    device.rate = [0, 0]
    assert not look(progress, device, after=10 * MS, due=True).wait
    progress.configure(("rail7",))
    device.rate = [FULL, 0]
    assert not look(progress, device, after=10 * MS, due=True).wait


def test_without_a_source_nothing_waits():
    progress = ByteProgress()
    progress.begin(SEC)
    assert progress.ask("silence", 0, RX, LINK) == (False, "")
    assert progress.held == 0


def test_all_that_is_looked_at_together_shares_a_reading(progress, device):
    device.rate = [FULL, FULL]
    device.run(LINK)
    device.reads = 0
    progress.begin(device.now)
    for key in range(5):
        progress.note(LINK)
        progress.ask(key, 0, RX, LINK)
    assert device.reads == 1


# -- the row of misses behind a queue --------------------------------------------------------------


def test_a_queue_asks_for_a_longer_row():
    rules = Rules(misses=3, link_interval_ns=LINK)
    queues = (0, 4 * MS, 5 * MS, 21 * MS, 53 * MS, 10 * SEC)
    assert [rules.queued(queue, LINK) for queue in queues] == [0, 0, 1, 2, 5, 9]


# -- the engine ------------------------------------------------------------------------------------


class Host(Simulated):
    """Whose rail0 moves payload."""

    def __init__(self, rx=0, tx=0):
        self.device = Device()
        self.device.rate = [rx, tx]
        self.queue_ns = 0
        self.queues = {}
        """Of single paths, (link, peer)."""
        self.unheard = False
        super().__init__()
        self.engine.progress.read = self._read
        self.run(SEC)
        self.changes.clear()

    def _read(self):
        self.device.run(max(0, self.now - self.device.now))
        return self.device.read()

    def views(self):
        found = [
            v._replace(queue_ns=self.queues.get((v.link, v.peer), self.queue_ns))
            for v in super().views()
        ]
        if self.unheard:
            found = [
                v._replace(rx_missed=0, tx_missed=v.rx_missed, acked_ns=v.last_heard_ns)
                if v.link == 0 else v
                for v in found
            ]  # fmt: skip
        return found

    def until_down(self, longest=2 * SEC):
        """Nanoseconds until rail0, or one of its paths, is out; None: not within the longest."""
        began = self.now
        while self.now - began < longest:
            self.run(5 * MS, step=5 * MS)
            if any(c.transition.to_state is S.DOWN for c in self.changes):
                return self.now - began
        return None


@pytest.mark.parametrize("silent_ms", [60, 110, 200])
@pytest.mark.parametrize("where", [[0], [(0, "a")]])
def test_a_queue_that_a_job_fills_at_once_changes_no_state(silent_ms, where):
    host = Host(rx=FULL, tx=FULL)
    for _ in range(3):
        host.silence(*where)
        host.run(silent_ms * MS, step=5 * MS)
        host.restore()
        host.run(100 * MS, step=5 * MS)
    assert not host.changes
    assert host.weights() == [1000] * 4


def test_the_same_silence_without_payload_is_a_verdict():
    host = Host()
    host.silence(0)
    assert host.until_down() <= 130 * MS


def test_a_black_hole_is_found_as_soon_as_ever_where_payload_ends_with_it():
    plain, filled = Host(), Host(rx=FULL, tx=FULL)
    took = []
    for host in (plain, filled):
        host.silence(0)
        host.device.rate = [0, FULL]
        took.append(host.until_down())
    assert took[0] == took[1]


def test_what_we_send_into_a_black_hole_is_found_once_tcp_has_stopped():
    """A queue of 53 ms drains into it; then only what is sent again leaves."""
    plain, filled = Host(), Host(rx=FULL, tx=FULL)
    took = []
    for host in (plain, filled):
        host.unheard = True
        host.silence(0)
        host.run(55 * MS, step=5 * MS)
        host.device.rate = [FULL, 0]
        took.append(host.until_down())
    assert took[0] < took[1] <= took[0] + RECENT_NS[TX] + 2 * LINK


def test_a_known_queue_delays_a_verdict_by_about_its_length():
    """RDMA payload is in no netdev's counters: the delay of the probes tells of the queue."""
    took = []
    for queue_ns in (0, 30 * MS):
        host = Host()
        host.queue_ns = queue_ns
        host.silence(0)
        took.append(host.until_down())
    assert took[0] + 20 * MS <= took[1] <= took[0] + 40 * MS


@pytest.mark.parametrize(("unheard", "burst_ms", "pause_ms"), [(False, 250, 450), (True, 75, 75)])
def test_a_dead_path_is_found_though_a_job_s_bursts_silence_the_others(unheard, burst_ms, pause_ms):
    """While these are looked at as the link's silence, the dead path's wait goes on."""
    host = Host(rx=FULL, tx=FULL)
    host.queue_ns = 0 if unheard else 20 * MS
    host.unheard = unheard
    host.silence((0, "a"))
    began, said = host.now, []
    while not host.changes and host.now - began < 5 * SEC:
        for silent, milliseconds in ((False, pause_ms), (True, burst_ms)):
            for peer in "bc":
                if silent:
                    host.silence((0, peer))
                else:
                    host.silent = {i: t for i, t in host.silent.items() if i == 0}
            host.run(milliseconds * MS, step=5 * MS)
            said += host.engine.congested.values()
    assert any("b, c" in text for text in said), "the bursts are seen"
    assert {(c.netdev, c.peer) for c in host.changes} == {("rail0", "a")}
    longest = LONGEST_NS[TX if unheard else RX]
    assert host.now - began <= longest + 300 * MS + 2 * (burst_ms + pause_ms) * MS


def test_another_peer_s_payload_delays_a_dead_path_little():
    """The others are heard at once: the link has no queue, and what arrives may be of them."""
    plain, filled = Host(), Host(rx=FULL)
    took = []
    for host in (plain, filled):
        host.silence((0, "a"))
        took.append(host.until_down())
    assert took[1] <= took[0] + ALONE_NS + 10 * MS
    assert f"though bytes arrive for {ALONE_NS / 1e9:g} s" in filled.changes[0].transition.reason


@pytest.mark.parametrize("queues", [{"b": 20 * MS, "c": 20 * MS}, {"b": 20 * MS, "c": 5 * MS}])
def test_a_path_waits_for_the_link_s_own_queue(queues):
    host = Host(rx=FULL)
    host.queues = {(0, peer): queue for peer, queue in queues.items()}
    host.silence((0, "a"))
    assert host.until_down() > LONGEST_NS[RX]


def test_a_path_of_a_peer_with_two_waits_for_another_peer():
    """That the other path of the silent peer is well says nothing of the link's payload."""
    host = Host(rx=FULL)
    host.silence((0, "a"))
    host.run(150 * MS, step=5 * MS)
    a, *others = (v for v in host.views() if v.link == 0)
    detector = host.engine._failure_detector
    assert detector._alone(a, [a, *others])
    assert not detector._alone(a, [a, others[0]._replace(peer="a")])
    assert not detector._alone(a, [a, others[0]._replace(last_heard_ns=a.due - 1)])
    assert not detector._alone(a, [a, others[0]._replace(tx_missed=1)])


@pytest.mark.parametrize("unheard", [False, True])
def test_the_queue_that_a_dead_path_had_delays_no_verdict_on_the_link(unheard):
    took = []
    for queue_ns in (0, 90 * MS):
        host = Host()
        host.unheard = unheard
        host.queues = {(0, "a"): queue_ns}
        host.silence((0, "a"))
        host.run(SEC, step=5 * MS)
        assert [(c.netdev, c.peer) for c in host.changes] == [("rail0", "a")]
        host.changes.clear()
        host.silence(0)
        took.append(host.until_down())
        assert {(c.netdev, c.peer) for c in host.changes} == {("rail0", "")}
    assert took[0] == took[1]


@pytest.mark.parametrize("unheard", [False, True])
def test_the_queue_that_the_link_has_still_asks_for_more(unheard):
    took = []
    for queue_ns in (0, 90 * MS):
        host = Host()
        host.unheard = unheard
        host.queues = {(0, "a"): queue_ns}
        host.silence(0)
        took.append(host.until_down())
    assert took[0] + 40 * MS <= took[1]


def test_silence_beside_payload_is_no_suspicion_and_is_told_by_the_engine():
    host = Host(rx=FULL)
    host.silence(0)
    host.run(400 * MS, step=5 * MS)
    assert not host.changes
    assert host.engine.congested == {0: "nothing heard from a, b, c; payload arrives"}
    assert host.until_down() is not None, "but not for ever"
    assert "though bytes arrive" in host.engine.links[0].health.reason


def test_a_trickle_is_no_payload():
    host = Host(rx=LEAST_BYTES // 2)
    host.silence(0)
    assert host.until_down() <= 130 * MS
    assert host.engine.progress.held == 0


def test_interval_of_the_tests():
    assert I == 3 * LINK
