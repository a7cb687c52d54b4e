"""The witness of an overloaded machine: the kernel's word on who waited for a processor."""

import os

import pytest

from lab.matrix.stall_watchdog import StallWatchdog, run_delays


@pytest.fixture
def proc(tmp_path):
    """A /proc with one process; ``proc.waited(thread, seconds)``: so long did it wait so far."""

    class Proc:
        path = tmp_path

        def waited(self, thread, seconds):
            directory = tmp_path / "7" / "task" / str(thread)
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "schedstat").write_text(f"123456 {round(seconds * 1e9)} 42\n")

    return Proc()


def test_each_thread_of_the_processes_is_read(proc):
    proc.waited(7, 1.5)
    proc.waited(8, 0.25)
    (proc.path / "7" / "task" / "9").mkdir()
    (proc.path / "7" / "task" / "9" / "schedstat").write_text("")
    assert sorted(run_delays([7, 99], proc.path).values()) == [0.25, 1.5]


def test_a_thread_that_waits_for_a_processor_counts_though_the_witness_runs(proc):
    proc.waited(7, 100.0)
    with StallWatchdog([7], proc.path) as watchdog:
        proc.waited(7, 100.5)
    assert 0.5 <= watchdog.longest_s < 100


def test_a_thread_that_is_new_counts_from_the_first_look(proc):
    proc.waited(7, 0.0)
    with StallWatchdog([7], proc.path) as watchdog:
        proc.waited(8, 100.0)
    assert watchdog.longest_s < 100


def test_the_kernel_says_it_of_this_process():
    assert run_delays([os.getpid()])
