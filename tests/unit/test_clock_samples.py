"""The prober's samples as trains of packets."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fabricd.clock.samples import TrainReader
from fabricd.probes import layout as lay
from fabricd.probes.ring import RingReader
from lab.ringfile import fresh_ring, put, sample_at

OUT, BACK = lay.SAMPLE_HAS_OUT, lay.SAMPLE_HAS_BACK


class Ring:
    """A ring file that a test writes samples into."""

    def __init__(self, path, head=0):
        self.path, self.head = path, head
        self.data = fresh_ring(0, head, paths=3)
        path.write_bytes(self.data)
        self.reader = RingReader(path)
        self.trains = TrainReader(self.reader)

    def add(self, path=1, *, out=None, back=None, config=1, hardware=0):
        """``out``, ``back``: (sequence, position in a train, sent, heard)."""
        flags, values = hardware, {}
        if out:
            flags |= OUT | out[1] << lay.SAMPLE_OUT_TRAIN_SHIFT
            values |= {"local_seq": out[0], "t1": out[2], "t2": out[3]}
        if back:
            flags |= BACK | back[1] << lay.SAMPLE_BACK_TRAIN_SHIFT
            values |= {"peer_seq": back[0], "t3": back[2], "t4": back[3]}
        sample_at(self.data, self.head, path=path, flags=flags, config=config, **values)
        self.head += 1

    def read(self, config=1):
        put(self.data, lay.RING_HEADER, 0, sample_head=self.head)
        with self.path.open("r+b") as file:
            file.write(self.data)
        return self.trains.read(config)


@pytest.fixture
def ring(tmp_path):
    made = Ring(tmp_path / "ring")
    yield made
    made.reader.close()


def columns(packets):
    return list(zip(*(column.tolist() for column in packets_of(packets)), strict=True))


def packets_of(packets):
    return packets.seq, packets.position, packets.sent_ns, packets.heard_ns


def test_both_directions_of_each_path(ring):
    ring.add(1, out=(7, 0, 10, 20))
    ring.add(2, back=(9, 0, 30, 40))
    ring.add(1, out=(8, 0, 11, 21), back=(3, 0, -5, 6))
    found = ring.read()
    assert sorted(found) == [1, 2]
    assert columns(found[1].out) == [(7, 0, 10, 20), (8, 0, 11, 21)]
    assert columns(found[1].back) == [(3, 0, -5, 6)]
    assert columns(found[2].back) == [(9, 0, 30, 40)]
    assert columns(found[2].out) == []
    assert ring.read() == {}, "each once"


def test_a_train_that_is_told_in_two_readings_is_whole_in_the_second(ring):
    ring.add(out=(1, 1, 1, 1))
    ring.add(out=(2, 2, 2, 2))
    assert columns(ring.read()[1].out) == []
    ring.add(out=(3, 3, 3, 3))
    ring.add(out=(4, 1, 4, 4))
    assert [row[1] for row in columns(ring.read()[1].out)] == [1, 2, 3]
    ring.add(out=(5, 0, 5, 5))
    assert [row[0] for row in columns(ring.read()[1].out)] == [4, 5], "its rest never came"


def test_order_is_that_of_the_sequence_also_where_its_low_bits_begin_anew(ring):
    for seq in (2**32 - 1, 2**32 - 2, 1, 0):
        ring.add(out=(seq, 0, seq, seq))
    assert [row[0] for row in columns(ring.read()[1].out)] == [2**32 - 2, 2**32 - 1, 0, 1]


def test_other_configurations_and_other_clocks_are_left_out(ring):
    ring.add(out=(1, 0, 1, 1), config=2)
    ring.add(out=(2, 0, 2, 2))
    ring.add(out=(3, 0, 3, 3), hardware=lay.SAMPLE_HW_LOCAL)
    found = ring.read()[1]
    assert [row[0] for row in columns(found.out)] == [3]
    assert found.hardware == (True, False)
    ring.add(out=(4, 0, 4, 4), hardware=lay.SAMPLE_HW_LOCAL | lay.SAMPLE_HW_PEER)
    assert ring.read()[1].hardware == (True, True)


def test_what_was_overwritten_while_it_was_read_is_left_out(ring):
    ring.add(out=(1, 0, 1, 1))
    ring.add(out=(2, 0, 2, 2))
    at = lay.SAMPLE_OFFSET
    put(ring.data, lay.SAMPLE_RECORD, at, index=lay.SAMPLE_SLOTS + 1)
    assert [row[0] for row in columns(ring.read()[1].out)] == [2]


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
            for packets in exchanged[:2]:
                lengths = {len(column) for column in packets_of(packets)}
                assert len(lengths) == 1
                assert all(column.dtype == np.int64 for column in packets_of(packets))
