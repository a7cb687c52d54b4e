"""Users of a host, with and without groups, at the socket that every fabric-run needs.

Real sockets and users: who connects, the kernel says.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest
from broker_lab import until

from compute import name_budget
from fabric_train.host.job_socket import JobSocket
from fabricd.control.pace import Pace
from fabricd.escalate.job_registry import (
    MOST_JOBS,
    MOST_LIVES,
    MOST_OF_USER,
    JobRegistry,
    RefusedError,
)
from fabricd.escalate.job_server import MOST_CONNECTIONS, NAMES_BURST, NAMES_RATE
from fabricd.escalate.jobs_here import JobsHere
from fabricd.escalate.refusals import Refusals
from fabricd.jobs.owners import Owners
from telemetry.messages.documents import ComputeOrder, Fence

ANN, MALLORY = 1001, 1002
SUBORDINATE = range(100_000, 165_536)
LONG_S = 60.0
AS_USER = """
import os, socket, sys, time
path, uid = sys.argv[1], int(sys.argv[2])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
"""
REGISTERS = AS_USER + textwrap.dedent("""
    at = socket.socket(socket.AF_UNIX)
    at.connect(path)
    at.sendall(sys.argv[3].encode() + b"\\n")
    at.settimeout(2)
    lines = at.makefile()
    try:
        while (line := lines.readline()):
            print(line.strip(), flush=True)
            if "hold" in sys.argv:
                at.settimeout(None)
    except TimeoutError:
        pass
""")
HOLDS = AS_USER + textwrap.dedent("""
    held = []
    for number in range(int(sys.argv[3])):
        one = socket.socket(socket.AF_UNIX)
        one.connect(path)
        line = f'{{"kind": "register", "version": 1, "job": "his-{uid}-{number}", '
        try:
            one.sendall(line.encode() + b'"incarnation": "i"}\\n')
        except OSError:
            pass  # there was no place
        held.append(one)
    print("ready", flush=True)
    sys.stdin.read()
""")
FLOODS = AS_USER + textwrap.dedent("""
    import threading
    def flood():
        while True:
            one = socket.socket(socket.AF_UNIX)
            try:
                one.connect(path)
            except OSError:
                pass
            one.close()
    for _ in range(int(sys.argv[3])):
        threading.Thread(target=flood, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
""")


def register(job, life):
    return json.dumps({"kind": "register", "version": 1, "job": job, "incarnation": life})


@pytest.fixture
def directory(lab_root):
    """Where every user may look in."""
    with tempfile.TemporaryDirectory(prefix="fabric-attack-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
async def jobs(directory):
    """fabricd's part that serves jobs; ``told`` has what would be published of each."""
    told = {}
    made = JobsHere(
        "h1", "boot", (directory, directory), (), deadline_s=1.0,
        refusals=Refusals(time.monotonic), record=lambda *_, **__: None,
        publish=lambda job, state: told.update({job: state}), fences_changed=lambda: None,
    )  # fmt: skip
    made.told = told
    made.open()
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def begin(script, directory, *arguments):
    command = [sys.executable, "-c", script, directory / "jobs.sock", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def end(process):
    process.kill()
    process.wait(LONG_S)
    process.stdin.close()
    process.stdout.close()


async def said(process):
    line = await asyncio.to_thread(process.stdout.readline)
    return json.loads(line) if line.startswith("{") else line


@pytest.mark.lab
async def test_nobody_takes_the_orders_of_a_run_that_has_ended(jobs, directory):
    """The read group sees incarnations, and orders hold the tokens of all agents of the job."""
    order = {"incarnation": "ann-1", "phase": "running", "token": "opens all ports of the job"}
    jobs.order("c0", ComputeOrder(jobs={"gpt": order}))
    hers = begin(REGISTERS, directory, ANN, register("gpt", "ann-1"), "hold")
    assert (await said(hers))["kind"] == "welcome"
    assert (await said(hers))["order"]["token"] == order["token"]
    end(hers)
    await until(lambda: "gpt" in jobs.told, "its end is known", LONG_S)
    for life in ("ann-1", "mallory-1", "ann-1"):  # also with a run of that name of his own before
        his = begin(REGISTERS, directory, MALLORY, register("gpt", life))
        told = (await asyncio.to_thread(his.communicate))[0]
        assert order["token"] not in told
        assert ("another user's" in told) == (life == "ann-1")


def fence_of_ann(host, uid=ANN):
    life = f"ann-{host}"
    return Fence(id=f"gpt/{host}/{life}", job="gpt", host=host, incarnation=life, uid=uid)


@pytest.mark.lab
async def test_nobody_learns_of_the_fences_of_a_namesake(jobs, directory):
    """Nor is his fabric-run waited for: her ranks would be moved only when he likes it."""
    jobs.order("c0", ComputeOrder(fences=[fence_of_ann("h5")]))
    his = begin(REGISTERS, directory, MALLORY, register("gpt", "mallory-1"), "hold")
    assert (await said(his))["kind"] == "welcome"
    fences = [fence_of_ann("h5"), fence_of_ann("h6")]
    jobs.order("c0", ComputeOrder(fences=fences))
    await until(lambda: len(jobs.fences.acknowledged()) == 2, "nobody waits for him", LONG_S)
    jobs.silent(["h7"])  # He is told that after all that was to be said before.
    assert (await said(his))["kind"] == "silent"
    end(his)
    await until(lambda: not jobs.registry.runs["gpt"].present, "his end is known", LONG_S)
    hers = begin(REGISTERS, directory, ANN, register("gpt", "ann-1"))
    told = (await asyncio.to_thread(hers.communicate))[0]
    assert "ann-h5" in told
    assert "ann-h6" in told


def test_a_life_stays_its_users_however_many_others_register():
    registry = JobRegistry()
    registry.register("gpt", "ann-1", ANN, 1, 1)
    registry.leave(registry.runs["gpt"])
    for number in range(3 * MOST_LIVES):
        registry.leave(registry.register("gpt", f"his-{number}", MALLORY, 2, 2))
    with pytest.raises(RefusedError, match="another user's"):
        registry.register("gpt", "ann-1", MALLORY, 2, 3)
    assert sum(map(len, registry._lives.values())) == MOST_LIVES + 1
    again = JobRegistry()
    registry.register("gpt", "ann-2", ANN, 1, 4)
    again.restore(registry.save())
    again.leave(again.runs["gpt"])
    with pytest.raises(RefusedError, match="another user's"):
        again.register("gpt", "ann-2", MALLORY, 2, 5)


def test_subordinate_users_are_one_user_when_jobs_are_counted():
    """With 8 uids of his user namespace one user took the places of all jobs of a host."""
    registry = JobRegistry(Owners(subordinate=(SUBORDINATE,)).user_of)
    got = 0
    for number in range(MOST_JOBS):
        uid = SUBORDINATE[number // MOST_OF_USER]
        with contextlib.suppress(RefusedError):
            registry.register(f"his-{number}", "i", uid, number, number)
            got += 1
    assert got == MOST_OF_USER
    assert registry.register("gpt", "i", ANN, 1, 1000).present


@pytest.mark.lab
async def test_subordinate_users_are_one_user_when_connections_are_counted(jobs, directory):
    jobs.registry.user_of = Owners(subordinate=(SUBORDINATE,)).user_of
    each = 32
    users = SUBORDINATE[: MOST_CONNECTIONS // each]
    holders = [begin(HOLDS, directory, uid, each) for uid in users]
    for one in holders:
        assert await said(one) == "ready\n"
    hers = begin(REGISTERS, directory, ANN, register("gpt", "ann-1"), "hold")
    assert (await said(hers))["kind"] == "welcome"
    for one in (hers, *holders):
        end(one)


@pytest.mark.lab
async def test_subordinate_users_are_one_user_when_new_names_are_counted(jobs, directory):
    """fabric-compute counts them by uid: three of his took all new jobs that a host may have."""
    jobs.registry.user_of = Owners(subordinate=(SUBORDINATE,)).user_of
    jobs.server._names = Pace(time.monotonic, rate=1e-6, burst=3, least=1)
    answers = []
    for number in range(5):
        his = begin(REGISTERS, directory, SUBORDINATE[number], register(f"his-{number}", "i"))
        answers.append((await said(his))["kind"])
        end(his)
    assert answers == ["welcome"] * 3 + ["refused"] * 2
    hers = begin(REGISTERS, directory, ANN, register("gpt", "ann-1"))
    assert (await said(hers))["kind"] == "welcome"
    end(hers)


def test_what_is_not_earned_is_not_spent():
    now = 0.0
    pace = Pace(lambda: now, rate=1.0, burst=2, least=1)
    assert [pace.takes(1, 1) for _ in range(9)] == [True, True, *[False] * 7]
    assert pace.takes(2, 1)
    now = 1.0
    assert [pace.takes(1, 1) for _ in range(2)] == [True, False]


def test_one_user_of_a_host_has_no_more_names_than_a_fabric_compute_takes():
    assert NAMES_RATE <= name_budget.USER_RATE
    assert name_budget.USER_BURST >= NAMES_BURST


class Heard:
    def welcomed(self, host):
        self.host = host


@pytest.mark.lab
async def test_a_flood_of_connections_keeps_no_fabric_run_away(jobs, directory):
    """Without its turn in the queue no fabric-run came through, for as long as the flood was."""
    floods = [begin(FLOODS, directory, MALLORY, 50) for _ in range(2)]
    for one in floods:
        assert await said(one) == "ready\n"
    for number in range(5):
        heard = Heard()
        socket = JobSocket(directory, f"gpt-{number}", f"i{number}", heard, print)
        await socket.open()
        assert heard.host == "h1"
        await socket.close(leave=True)
    for one in floods:
        end(one)
