"""What ranks print: prefixes, files, and disks that are full or slow."""

import errno
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_train.agent import log_files, outputs
from fabric_train.agent.exit_status import RECENT_S, ExitStatuses
from fabric_train.agent.lines import LONGEST, Lines
from fabric_train.agent.log_files import LogFiles
from fabric_train.agent.outputs import Outputs
from fabric_train.agent.progress_line import ProgressLine
from fabric_train.rules.coordinator import RecoveryRecord


@given(st.lists(st.text(alphabet="ab\r\n").map(str.encode), max_size=20))
def test_lines_are_whole_and_nothing_is_lost_or_changed(pieces):
    lines = Lines()
    found = [line for piece in pieces for line in lines.feed(piece)] + lines.end()
    whole = b"".join(pieces)
    assert b"".join(found) in (whole, whole + b"\n")
    assert all(line.endswith((b"\r", b"\n")) and len(line.splitlines()) == 1 for line in found)
    assert not lines.end()


def test_a_line_without_end_is_cut():
    lines = Lines()
    assert lines.feed(b"x" * LONGEST) == []
    assert lines.feed(b"y") == [b"x" * LONGEST + b"\n"]
    assert lines.end() == [b"y\n"]


class Child:
    """Prints like a process of a fabric-run."""

    def __init__(self, made, name):
        self.made, self.name = made, name
        self.pipes = [os.dup(one) for one in made.open(name)]
        made.started(name)

    def print(self, data, stream=0):
        os.write(self.pipes[stream], data)

    def end(self):
        for pipe in self.pipes:
            os.close(pipe)
        self.made.ended(self.name)


@pytest.fixture
def said():
    return []


def test_each_process_has_its_files_and_a_rank_points_to_who_has_it(tmp_path, said):
    made = Outputs(LogFiles(tmp_path / "run", said.append), tee=0)
    first, spare = Child(made, "h0/i1/p0"), Child(made, "h0/i1/p1")
    made.ranked("h0/i1/p0", 3)
    first.print(b"one\n")
    first.print(b"wrong\n", 1)
    first.end()
    made.ranked("h0/i1/p1", 3)
    spare.print(b"two")
    spare.end()
    made.close()
    assert (tmp_path / "run" / "p0" / "stdout").read_bytes() == b"one\n"
    assert (tmp_path / "run" / "p0" / "stderr").read_bytes() == b"wrong\n"
    assert (tmp_path / "run" / "rank3" / "stdout").read_bytes() == b"two"
    assert said == []


def test_lines_get_the_rank_that_a_process_has_then(tmp_path, capfd):
    made, shown = Outputs(None, prefixed=True), threading.Event()
    show = made._show
    made._show = lambda *what: (show(*what), shown.set())
    child = Child(made, "p4")
    child.print(b"warm\n")
    assert shown.wait(60)
    made.ranked("p4", 2)
    child.print(b"step 1\nste")
    child.print(b"p 2\n")
    child.print(b"trouble", 1)
    child.end()
    made.close()
    rest = capfd.readouterr()
    assert rest.out == "[p4]: warm\n[rank2]: step 1\n[rank2]: step 2\n"
    assert rest.err == "[rank2]: trouble\n"


def test_what_is_printed_before_the_end_is_there_though_others_hold_the_pipe(tmp_path, said):
    made = Outputs(LogFiles(tmp_path, said.append), tee=0)
    child = Child(made, "p0")
    worker = [os.dup(one) for one in child.pipes]  # what it has started lives on
    child.print(b"x" * 50_000)
    child.end()
    made.close()
    assert (tmp_path / "p0" / "stdout").stat().st_size == 50_000
    for pipe in worker:
        os.close(pipe)


def test_a_full_disk_is_said_once_and_written_again_when_there_is_room(tmp_path, said, monkeypatch):
    full, write = threading.Event(), os.write

    def limited(descriptor, data):
        if full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    full.set()
    monkeypatch.setattr(log_files.os, "write", limited)
    files, tried = LogFiles(tmp_path, said.append), threading.Event()
    for _ in range(3):
        files.write("p0/stdout", b"lost\n")
    files._put(lambda: tried.set() or 0, 0)
    assert tried.wait(60)
    full.clear()
    files.write("p0/stdout", b"kept\n")
    files.close(60)
    assert (tmp_path / "p0" / "stdout").read_bytes() == b"kept\n"
    assert len(said) == 2
    assert "No space left on device" in said[0]
    assert said[1].endswith(": 15 bytes of output are missing there")


def test_a_directory_that_cannot_be_made_stops_nobody(tmp_path, said):
    (tmp_path / "file").touch()
    made = Outputs(LogFiles(tmp_path / "file" / "run", said.append), tee=0)
    child = Child(made, "p0")
    made.ranked("p0", 0)
    for _ in range(10):
        child.print(b"x" * 60_000)  # would block if nobody read it
    child.end()
    made.close()
    assert "Not a directory" in said[0]
    assert said[-1].endswith(": 600000 bytes of output are missing there")


def test_a_disk_that_hangs_stops_nobody(tmp_path, said, monkeypatch):
    hangs, write = threading.Event(), os.write

    def hung(descriptor, data):
        if threading.current_thread().name == "fabric-logs":
            hangs.wait()
        return write(descriptor, data)

    monkeypatch.setattr(log_files, "MOST_WAITING", 100_000)
    monkeypatch.setattr(log_files.os, "write", hung)
    made = Outputs(LogFiles(tmp_path, said.append), tee=0)
    child = Child(made, "p0")
    for _ in range(20):
        child.print(b"x" * 60_000)
    child.end()
    made.close(1.0)
    assert said[-1].endswith("bytes of output are missing there")
    hangs.set()


def test_a_reader_of_the_console_that_has_gone_ends_nothing(monkeypatch):
    def gone(_descriptor, _data):
        raise BrokenPipeError

    monkeypatch.setattr(outputs.os, "write", gone)
    made = Outputs(None, prefixed=True)
    child = Child(made, "p0")
    monkeypatch.undo()
    for _ in range(10):
        child.print(b"line\n" * 1000)
    child.end()
    made.close()


def test_a_job_that_fails_has_the_status_of_the_process_that_ended_it():
    statuses = ExitStatuses()
    assert statuses.of_failure(0.0) == 1
    statuses.ended(-9, 100.0)
    assert statuses.of_failure(101.0) == 137
    assert statuses.of_failure(100.0 + RECENT_S + 1) == 1, "it was replaced, and the job went on"
    statuses.ended(7, 200.0)
    statuses.ended(0, 201.0)
    assert statuses.of_failure(199.0) == 7


def test_the_line_says_steps_their_rate_and_the_last_takeover():
    line, records = ProgressLine(), []
    assert line.text(0, 0, records, 1.0) == "waits for its ranks"
    assert line.text(10, 1, records, 10.0) == "step 10, 0 steps/s, generation 1, no takeover"
    assert line.text(35, 1, records, 20.0) == "step 35, 2.5 steps/s, generation 1, no takeover"
    records.append(RecoveryRecord(2, (), "connections failed", 21.0))
    records.append(RecoveryRecord(3, (2,), "killed by SIGKILL", 22.0))
    said = line.text(40, 3, records, 82.0)
    assert said == (
        "step 40, 0.0806 steps/s, generation 3, 1 takeover, the last 60 s ago "
        "(rank 2: killed by SIGKILL)"
    )
    records[-1] = records[-1].amended(again=1)
    assert line.text(40, 3, records, 82.0) == f"{said}, 1 step run again"
