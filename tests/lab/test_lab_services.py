"""Services of a host: restarted after a crash, not while the node is dead; daemon and prober."""

import json
import signal
import time

import pytest

from lab.cluster import wait_until
from lab.faults.catalog import NodeFreeze, NodeKill
from lab.lifecycle import procs
from lab.lifecycle.registry import LabError
from lab.node import build_dir
from lab.services.service import Service

PATIENCE_S = 60
LOOP = ["sh", "-c", "echo begun; trap 'echo ended; exit 0' TERM; while :; do sleep 0.05; done"]


@pytest.fixture
def one(cluster):
    return cluster(hosts=1, rails=1)


def begun(lab, times=1):
    log = lab.nodes[0].dir / "loop.log"
    wait_until(lambda: log.read_text() == "begun\n" * times, PATIENCE_S, f"{times} beginnings")


def service(lab, *, restart):
    node = lab.nodes[0]
    return Service(
        node.ns,
        "loop",
        LOOP,
        env=node.env(),
        log=node.dir / "loop.log",
        pid_dir=lab.dir.pids,
        restart=restart,
        forbidden=lambda: node.dead,
    )


def test_restart_after_a_crash(one):
    loop = service(one, restart=True)
    loop.start()
    begun(one)
    pid = loop.kill(signal.SIGKILL)
    new = loop.wait_restarted(pid, PATIENCE_S)
    assert new != pid
    wait_until(lambda: new in one.nodes[0].pids(), PATIENCE_S, "the process inside its host")
    assert loop.exits == [-9]
    begun(one, 2)
    assert loop.stop(PATIENCE_S) == 0
    time.sleep(0.5)
    assert not loop.running, "a stop is not a crash"
    assert (one.nodes[0].dir / "loop.log").read_text().endswith("ended\n")
    with pytest.raises(ProcessLookupError):
        loop.kill()


def test_no_restart_unless_asked(one):
    loop = service(one, restart=False)
    loop.start()
    loop.kill()
    wait_until(lambda: not loop.running, PATIENCE_S, "the end")
    time.sleep(0.5)
    assert loop.starts == 1


def test_a_dead_node_restarts_nothing_until_it_is_back(one):
    loop = service(one, restart=True)
    loop.start()
    with one.inject(NodeKill("h0")):
        time.sleep(0.6)
        assert not loop.running
        assert one.nodes[0].pids() == []
    wait_until(lambda: loop.running, PATIENCE_S, "the restart")
    loop.stop()


def test_a_frozen_service_can_be_stopped(one):
    loop = service(one, restart=True)
    loop.start()
    begun(one)
    fault = one.arm(NodeFreeze("h0"))
    fault.start()
    assert loop.stop(PATIENCE_S) == 0, "it acted on SIGTERM, and was not killed"


def test_what_is_not_there_is_said(one, monkeypatch):
    node = one.nodes[0]
    with pytest.raises(LabError, match="never started"):
        node.kill_daemon()
    monkeypatch.setenv("FABRIC_BUILD", "nonesuch")
    with pytest.raises(LabError, match=r"\./run build nonesuch"):
        node.start_prober()
    with pytest.raises(LabError, match="nonesuch"):
        _ = one.binaries


def test_daemon_and_prober_run_in_every_host(cluster):
    assert (build_dir() / "prober" / "fabric-prober").exists(), f"./run build {build_dir().name}"
    lab = cluster(hosts=2, rails=2)
    lab.start_daemons(hold={"hold_down_s": 0.5})

    def status(node):
        done = node.run(
            ["python3", "-c", ASK, str(node.run_dir / "ctl.sock"), "links"], check=False
        )
        return json.loads(done.stdout) if done.returncode == 0 else {}

    for node in lab.nodes:
        wait_until(lambda n=node: status(n).get("ok") is True, PATIENCE_S, f"{node.name}'s daemon")
        assert "rail1" in json.dumps(status(node)["data"])
        wait_until(lambda n=node: (n.run_dir / "prober" / "ring").exists(), PATIENCE_S, "the ring")
    for kill, what in (("kill_daemon", "daemon"), ("kill_prober", "prober")):
        for node in lab.nodes:
            old = getattr(node, kill)()
            assert getattr(node, what).wait_restarted(old, PATIENCE_S) != old
    for node in lab.nodes:
        wait_until(
            lambda n=node: status(n).get("ok") is True, PATIENCE_S, f"{node.name}'s daemon again"
        )
    running = procs.inhabitants([node.ns for node in lab.nodes])
    assert len(running) >= 4
    lab.down()
    wait_until(lambda: not any(who.alive for who in running), PATIENCE_S, "the end of all")


ASK = """
import json, socket, sys
s = socket.socket(socket.AF_UNIX); s.settimeout(20); s.connect(sys.argv[1])
s.sendall(json.dumps({"op": sys.argv[2]}).encode() + b"\\n")
print(s.makefile().readline())
"""
