"""kill -9 of a writer in mid-append: the database is whole and no acknowledged row is lost."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from telemetry.timeline import Timeline

WRITER = """
import sys
from telemetry.timeline import Timeline
from telemetry.events import Event, EventKind
store = Timeline(sys.argv[1], host="h0")
number = 0
while True:
    batch = [
        Event(kind=EventKind.FLAP, wall_ns=number + i, mono_ns=0, link="rail0", reason="x" * 200)
        for i in range(7)
    ]
    stored = store.append(batch)
    store.set_state("progress", {"seq": stored[-1].seq})
    number += 7
    # One write(2): the acknowledgement is whole or absent.
    sys.stdout.write(f"{stored[-1].seq:012d}\\n")
    sys.stdout.flush()
"""


@pytest.mark.parametrize("seed", range(4))
def test_kill_in_mid_append(tmp_path, seed):
    path = tmp_path / "t.db"
    chance = random.Random(seed)
    acknowledged = 0
    for _ in range(3):  # each generation goes on where the killed one stopped
        out = tmp_path / "acks"
        with out.open("wb") as file:
            writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=file)
        deadline = time.monotonic() + 60
        while out.stat().st_size < 130:
            assert time.monotonic() < deadline, "the writer does not write"
            assert writer.poll() is None
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.15))
        os.kill(writer.pid, signal.SIGKILL)
        assert writer.wait() == -signal.SIGKILL
        acks = out.read_text().split()
        assert int(acks[-1]) > acknowledged
        acknowledged = int(acks[-1])

        with Timeline(path, host="h0") as store:
            assert store.quarantined == []
            rows = store.query(limit=None)
            stored = len(rows)
            assert stored >= acknowledged
            assert stored % 7 == 0, "half a batch"
            assert [e.seq for e in rows] == list(range(1, stored + 1))
            assert store.flap_total("rail0") == stored
            # The document is written after its batch: it may lack the last one, never lead.
            assert stored - 7 <= store.get_state("progress")["seq"] <= stored
            assert store._read("PRAGMA integrity_check", ()) == [("ok",)]
