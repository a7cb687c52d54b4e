"""What a rank process is given by its fabric-run."""

import asyncio

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
