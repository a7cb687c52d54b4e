"""What a rank process is given by its fabric-run."""

import asyncio
import os
import signal

from fabric_train.agent.processes import Processes


class Events:
    def __init__(self):
        self.code = asyncio.get_running_loop().create_future()

    def exited(self, process, code):
        self.code.set_result(code)

    def disconnected(self, process):
        pass


async def environment(tmp_path, incarnation):
    """FABRIC_INCARNATION in a process of a fabric-run; None: it has none."""
    out = tmp_path / "out"
    script = f'printf %s "${{FABRIC_INCARNATION-none}}" > {out}'
    events = Events()
    processes = Processes(["sh", "-c", script], 1, tmp_path, events, print, incarnation)
    processes.spawn("p1")
    assert await events.code == 0
    return out.read_text()


async def test_a_process_knows_the_incarnation_of_its_fabric_run(tmp_path, monkeypatch):
    monkeypatch.setenv("FABRIC_INCARNATION", "of somebody else")
    assert await environment(tmp_path, "00112233445566ff") == "00112233445566ff"


async def test_without_one_it_has_none(tmp_path, monkeypatch):
    monkeypatch.delenv("FABRIC_INCARNATION", raising=False)
    assert await environment(tmp_path, "") == "none"


async def test_a_process_that_a_signal_stops_is_seen_as_stopped(tmp_path):
    events = Events()
    processes = Processes(["sleep", "600"], 1, tmp_path, events, print)
    processes.spawn("p1")
    child = processes._children["p1"]

    def stopped():
        return processes.finished_by("p1").stopped

    assert not stopped()
    os.kill(child.pid, signal.SIGSTOP)
    await asyncio.to_thread(os.waitid, os.P_PID, child.pid, os.WSTOPPED)
    assert stopped()
    os.kill(child.pid, signal.SIGCONT)
    await asyncio.to_thread(os.waitid, os.P_PID, child.pid, os.WCONTINUED)
    assert not stopped()
    processes.kill("p1")
    assert await events.code == -signal.SIGKILL
    assert not stopped()
    assert processes.finished_by("p1").step == 0
