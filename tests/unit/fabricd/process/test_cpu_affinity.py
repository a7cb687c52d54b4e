"""CPUs: lists, the kernel's own, and a process that is really put there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.process import cpu_affinity


def test_lists():
    assert cpu_affinity.parse_cpus("0-1,8") == {0, 1, 8}
    assert cpu_affinity.parse_cpus("") is None
    assert cpu_affinity.parse_cpus("housekeeping") is None


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "0,,1", "4096", "0 1", "0-99999", "٣"])
def test_what_is_no_list(text):
    with pytest.raises(ValueError, match="CPU"):
        cpu_affinity.parse_cpus(text)


@given(st.text(alphabet="0123456789-, x", max_size=20))
def test_any_text_is_a_list_or_refused(text):
    try:
        cpus = cpu_affinity.parse_cpus(text)
    except ValueError:
        return
    assert cpus is None or cpus <= set(range(4096))


def test_housekeeping_leaves_out_what_the_kernel_keeps_for_jobs(tmp_path):
    (tmp_path / "online").write_text("0-7\n")
    assert cpu_affinity.housekeeping(tmp_path) == set(range(8))
    (tmp_path / "isolated").write_text("2-5\n")
    (tmp_path / "nohz_full").write_text("  (null)\n")
    assert cpu_affinity.wanted("housekeeping", tmp_path) == {0, 1, 6, 7}
    (tmp_path / "isolated").write_text("0-7\n")
    assert cpu_affinity.wanted("housekeeping", tmp_path) is None, "nothing is left: leave it alone"
    assert cpu_affinity.wanted("housekeeping", tmp_path / "none") is None


def test_all_threads_of_a_process_are_put_there():
    code = (
        "import threading, sys; e = threading.Event();"
        "[threading.Thread(target=e.wait, daemon=True).start() for _ in range(3)];"
        "print('ready', flush=True); sys.stdin.read()"
    )
    one = {min(os.sched_getaffinity(0))}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "ready\n"
        cpu_affinity.pin(child.pid, one)
        threads = [t.name for t in Path(f"/proc/{child.pid}/task").iterdir()]
        assert len(threads) == 4
        assert all(os.sched_getaffinity(int(t)) == one for t in threads)
        with pytest.raises(OSError, match="Invalid argument"):
            cpu_affinity.pin(child.pid, {4095})
        assert not cpu_affinity.is_prober(child.pid)
        child.stdin.close()
    assert not cpu_affinity.is_prober(child.pid), "gone"
