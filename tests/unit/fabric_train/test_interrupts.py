"""An interrupt reaches fabric-run, and no process that it starts."""

import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

from fabric_train.agent import interrupts
from fabric_train.rank import launched

CHILD = """
import os, signal
from fabric_train.rank.launched import leave_interrupts_to_agent
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {signal.SIGINT}
os.kill(os.getpid(), signal.SIGINT)
leave_interrupts_to_agent()
os.kill(os.getpid(), signal.SIGINT)
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
print("child lives")
"""
PARENT = f"""
import os, signal, subprocess, sys, threading
from fabric_train.agent import interrupts
told = threading.Event()
with interrupts.kept_from_ranks(told.set):
    subprocess.run([sys.executable, "-c", {CHILD!r}], check=True)
    os.kill(os.getpid(), signal.SIGINT)
    assert told.wait(60)
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
print("told")
"""
"""A process of its own: other threads of this one would take the signal."""


def test_it_is_told_on_another_thread_and_children_do_not_hear_of_it():
    done = subprocess.run(
        [sys.executable, "-c", PARENT], check=False, capture_output=True, text=True
    )
    assert done.stdout.split() == ["child", "lives", "told"], done.stderr


def test_a_handler_of_the_script_stays():
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))
    try:
        launched.leave_interrupts_to_agent()
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def test_what_a_wait_returns_that_another_signal_has_ended_is_no_interrupt(monkeypatch):
    """CPython fills the answer with memory of any content then."""
    waited, told = threading.Semaphore(0), []

    def ended(_signals, _timeout):
        waited.release()
        return SimpleNamespace(si_signo=1017590256)

    monkeypatch.setattr(interrupts.signal, "sigtimedwait", ended)
    with interrupts.kept_from_ranks(lambda: told.append(1)):
        for _ in range(3):
            assert waited.acquire(timeout=60)
    assert told == []
