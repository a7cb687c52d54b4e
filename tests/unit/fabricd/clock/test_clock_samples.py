"""The prober's samples as trains of packets."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import pytest

from clocksync.pair.trains import Trains
from fabricd.clock.samples import REACH, SampleReader, trains
from fabricd.probes import layout as lay
from fabricd.probes.ring import RingReader
from lab.inputs.ring_file import fresh_ring, put, sample_at

OUT, BACK = lay.SAMPLE_HAS_OUT, lay.SAMPLE_HAS_BACK


class Found(NamedTuple):
    out: Trains
    back: Trains
    hardware: tuple[bool, bool]
    messages: list[bytes]


class Ring:
    """A ring file that a test writes samples into."""

    def __init__(self, path, head=0):
        self.path, self.head = path, head
        self.data = fresh_ring(0, head, paths=3)
        path.write_bytes(self.data)
        self.reader = RingReader(path)
        self.samples = SampleReader(self.reader)
        self.came = {path: [] for path in range(3)}
        """Of each path what is still to be taken apart."""
        self.stamps = {}
        """Of each path whose stamps these are."""

    def add(self, path=1, *, out=None, back=None, config=1, hardware=0, clock_message=(0, 0, 0, 0)):
        """``out``, ``back``: (sequence, position in a train, sent, heard)."""
        flags, values = hardware, {"clock_message": clock_message}
        if out:
            flags |= OUT | out[1] << lay.SAMPLE_OUT_TRAIN_SHIFT
            values |= {"local_seq": out[0], "t1": out[2], "t2": out[3]}
        if back:
            flags |= BACK | back[1] << lay.SAMPLE_BACK_TRAIN_SHIFT
            values |= {"peer_seq": back[0], "t3": back[2], "t4": back[3]}
        sample_at(self.data, self.head, path=path, flags=flags, config=config, **values)
        self.head += 1

    def read(self):
        return self.take(self.read_packets())

    def read_packets(self):
        put(self.data, lay.RING_HEADER, 0, sample_head=self.head)
        with self.path.open("r+b") as file:
            file.write(self.data)
        self.samples.want(1, range(3))
        return self.samples.read()

    def take(self, came):
        """Trains and messages of what came."""
        found = {}
        for path, each in came.items():
            if self.stamps.setdefault(path, each.hardware) != each.hardware:
                self.came[path].clear()  # as the service does
                self.stamps[path] = each.hardware
            self.came[path].append(each.packets)
            ((out, back, rest),) = trains([self.came[path]])
            self.came[path] = [rest]
            found[path] = Found(out, back, each.hardware, each.messages)
        return found


@pytest.fixture
def ring(tmp_path):
    made = Ring(tmp_path / "ring")
    yield made
    made.reader.close()


def listed(found):
    """(sent, heard) of second packets; those of third ones are a nanosecond later."""
    assert (np.diff(found.sent_ns) == 1).all()
    assert (np.diff(found.heard_ns) == 1).all()
    return list(zip(found.sent_ns[:, 0].tolist(), found.heard_ns[:, 0].tolist(), strict=True))


def add_train(ring, path, seq, sent, heard, way="out"):
    for position in (1, 2, 3):
        at = position - 2
        ring.add(path, **{way: (seq + at, position, sent + at, heard + at)})


def test_both_directions_of_each_path(ring):
    add_train(ring, 1, 7, 10, 20)
    add_train(ring, 2, 9, 30, 40, "back")
    ring.add(1, out=(9, 0, 50, 60))
    for at in (0, 1, 2):
        ring.add(1, out=(10 + at, 1 + at, 69 + at, 79 + at), back=(3 + at, 1 + at, -6 + at, 5 + at))
    found = ring.read()
    assert sorted(found) == [1, 2]
    assert listed(found[1].out) == [(10, 20), (70, 80)]
    assert listed(found[1].back) == [(-5, 6)]
    assert listed(found[2].back) == [(30, 40)]
    assert listed(found[2].out) == []
    assert ring.read() == {}, "each once"


def test_a_train_that_is_told_in_two_readings_is_whole_in_the_second(ring):
    ring.add(out=(1, 1, 1, 1))
    ring.add(out=(2, 2, 2, 2), back=(5, 3, 8, 8))
    add_train(ring, 2, 20, 5, 5)
    assert listed(ring.read()[1].out) == []
    add_train(ring, 2, 24, 6, 6)
    assert sorted(ring.read()) == [2], "nothing new of the other"
    ring.add(out=(3, 3, 3, 3), back=(6, 2, 9, 9))
    ring.add(out=(4, 1, 4, 4))
    found = ring.read()[1]
    assert listed(found.out) == [(2, 2)]
    assert listed(found.back) == []
    ring.add(out=(6, 3, 5, 5), back=(7, 3, 10, 10))
    found = ring.read()[1]
    assert listed(found.out) == [], "its second never came"
    assert listed(found.back) == [(9, 9)]


def test_paths_that_are_not_wanted_are_left_out(ring):
    add_train(ring, 1, 7, 10, 20)
    add_train(ring, 2, 7, 10, 20)
    put(ring.data, lay.RING_HEADER, 0, sample_head=ring.head)
    ring.path.write_bytes(ring.data)
    assert ring.take(ring.samples.read()) == {}
    ring.samples.want(1, [2])
    add_train(ring, 1, 10, 10, 20)
    add_train(ring, 2, 10, 10, 20)
    put(ring.data, lay.RING_HEADER, 0, sample_head=ring.head)
    ring.path.write_bytes(ring.data)
    assert sorted(ring.take(ring.samples.read())) == [2]


def test_order_is_that_of_the_sequence_also_where_its_low_bits_begin_anew(ring):
    for seq, position in ((2**32 - 1, 2), (2**32 - 2, 1), (3, 3), (0, 3), (2, 2)):
        ring.add(out=(seq, position, seq % 2**31, seq % 2**31))
    found = ring.read()[1].out
    assert found.sent_ns.tolist() == [[2**31 - 1, 0], [2, 3]]


def test_a_prober_that_began_anew_is_later_than_what_it_said_before(ring):
    """Its sequence begins anew too, wherever that is, and by it the new packets may be older."""
    for seq, at in ((REACH + 9, 10), (REACH + 12, 20), (5, 30), (8, 40), (2**31 + 99, 50)):
        add_train(ring, 1, seq, at, at)
    assert listed(ring.read()[1].out) == [(at, at) for at in (10, 20, 30, 40, 50)]


def test_many_readings_of_several_paths_are_taken_apart_together(ring):
    """The third of each train comes with the next reading."""
    came = [[], [], []]
    for seq in range(0, 60, 3):
        for path, way in ((1, "out"), (2, "back")):
            for packet, position in ((seq, 3), (seq + 1, 1), (seq + 2, 2)):
                at = 10 * seq + packet
                ring.add(path, **{way: (packet, position, at, at + path)})
        for path, each in ring.read_packets().items():
            came[path].append(each.packets)
    none, one, two = trains(came)
    sent = [(11 * seq + 2, 11 * seq + 33) for seq in range(0, 57, 3)]
    assert [tuple(each) for each in one[0].sent_ns.tolist()] == sent
    assert [tuple(each) for each in two[1].sent_ns.tolist()] == sent
    assert (two[1].heard_ns == two[1].sent_ns + 2).all()
    assert [len(each.sent_ns) for each in (*none[:2], one[1], two[0])] == [0] * 4
    assert [each[2].shape[1] for each in (none, one, two)] == [0, 1, 1], "the last wait"
    assert trains([]) == []


def test_other_configurations_and_other_clocks_are_left_out(ring):
    ring.add(out=(1, 2, 1, 1), config=2)
    ring.add(out=(2, 2, 2, 2))
    ring.add(out=(3, 3, 3, 3), hardware=lay.SAMPLE_HW_LOCAL)
    ring.add(out=(4, 2, 4, 4), hardware=lay.SAMPLE_HW_LOCAL)
    found = ring.read()[1]
    assert listed(found.out) == []
    assert found.hardware == (True, False)
    ring.add(out=(5, 3, 5, 5), hardware=lay.SAMPLE_HW_LOCAL)
    assert listed(ring.read()[1].out) == [(4, 4)]
    ring.add(out=(6, 2, 6, 6), hardware=lay.SAMPLE_HW_LOCAL)
    ring.read()
    ring.add(out=(7, 3, 7, 7), hardware=lay.SAMPLE_HW_LOCAL | lay.SAMPLE_HW_PEER)
    found = ring.read()[1]
    assert found.hardware == (True, True)
    assert listed(found.out) == []


def test_a_stamp_that_the_nic_left_out_is_no_change_of_clocks(ring):
    both = lay.SAMPLE_HW_LOCAL | lay.SAMPLE_HW_PEER
    ring.add(out=(1, 2, 1, 1), hardware=both)
    ring.add(out=(2, 3, 2, 2), hardware=both)
    ring.add(out=(5, 2, 5, 5))
    ring.add(out=(6, 3, 6, 6))
    ring.add(clock_message=(1, 2, 3, 4))
    found = ring.read()[1]
    assert (listed(found.out), found.hardware) == ([(1, 1)], (True, True))
    ring.add(clock_message=(1, 2, 3, 4))
    assert ring.read()[1].hardware == (True, True), "a message alone has no stamps"
    ring.add(out=(8, 2, 8, 8), hardware=both)
    ring.add(out=(9, 3, 9, 9))
    assert ring.read()[1].hardware == (True, True)
    ring.add(out=(11, 2, 11, 11), hardware=both)
    ring.read()
    ring.add(out=(12, 3, 12, 12))
    assert ring.read()[1].hardware == (False, False), "none of the NIC's any more"


def test_what_was_overwritten_while_it_was_read_is_left_out(ring):
    add_train(ring, 1, 2, 1, 1)
    add_train(ring, 1, 5, 9, 9)
    at = lay.SAMPLE_OFFSET + lay.SAMPLE_RECORD.size
    put(ring.data, lay.SAMPLE_RECORD, at, index=lay.SAMPLE_SLOTS + 2)
    assert listed(ring.read()[1].out) == [(9, 9)]


def test_any_bytes_are_read_without_harm(ring):
    rng = random.Random(11)
    for _ in range(300):
        for _ in range(rng.randint(1, 12)):
            ring.add(0)
            at = lay.SAMPLE_OFFSET + ((ring.head - 1) % lay.SAMPLE_SLOTS) * lay.SAMPLE_RECORD.size
            ring.data[at + 8 : at + 64] = rng.randbytes(56)
            if rng.random() < 0.8:  # of the configuration that is asked for
                put(ring.data, lay.SAMPLE_RECORD, at, config=1, path=rng.randrange(3))
        for exchanged in ring.read().values():
            for found in exchanged[:2]:
                assert found.sent_ns.shape == found.heard_ns.shape
                assert found.sent_ns.dtype == found.heard_ns.dtype == np.int64


def test_messages_are_the_newest_of_each_kind(ring):
    ring.add(1, clock_message=(1, 2, 3, 4))
    ring.add(1, out=(1, 0, 10, 20), clock_message=(3 << 8 | 2, 0, 0, 9))
    ring.add(1, clock_message=(1, 7, 7, 7))
    ring.add(2, out=(1, 0, 10, 20))
    found = ring.read()
    assert sorted(found[1].messages) == [
        b"".join(n.to_bytes(8, "little") for n in message)
        for message in ((1, 7, 7, 7), (0x302, 0, 0, 9))
    ]
    assert not found[2].messages
