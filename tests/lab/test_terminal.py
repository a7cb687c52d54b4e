"""What an operator reads on 80 columns while links fail, and when the daemon does not answer."""

import signal
import subprocess
import sys
import time

import pytest
from test_daemon_faults import SLOW_S, rows, started, states

from lab.cluster import wait_until
from lab.faults.catalog import BlackHole, Carrier

pytestmark = pytest.mark.timeout(400)
WIDTH, PAGE, FLAPS = 80, 24, 5
TABLES = [
    ["status"], ["links"], ["links", "--paths"], ["jobs"], ["timeline", "--since", "1h"],
    ["explain", "rail1"], ["detector", "list"], ["top", "--once"],
]  # fmt: skip


def fabricctl(node, *words, code=0, limit_s=200):
    """Lines of the output."""
    command = [sys.executable, "-m", "fabricd.cli", *words]
    env = node.env({"FABRIC_CTL_SOCKET": str(node.run_dir / "ctl.sock"), "COLUMNS": str(WIDTH)})
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=limit_s, check=False, env=env
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.splitlines(), done.stderr


def flapped(node):
    return sum(row["count"] for row in rows(node, kind="flap", link="rail1"))


def test_faults_on_80_columns_and_a_history_without_a_daemon(cluster):
    lab = started(cluster)
    node = lab.nodes[0]
    for _ in range(FLAPS):
        with lab.inject(Carrier("h0:rail1")):
            time.sleep(0.3)
        time.sleep(0.3)
    wait_until(lambda: flapped(node) == FLAPS, SLOW_S, "every flap is stored")
    with lab.inject(Carrier("h0:rail1")), lab.inject(BlackHole("h2:rail0")):
        wait_until(lambda: states(node)["rail1"] == "down", SLOW_S, "down")
        for words in TABLES:
            lines, _ = fabricctl(node, *words)
            assert lines, words
            assert max(map(len, lines)) <= WIDTH or words[0] == "top", (words, lines)
        lines, _ = fabricctl(node, "links")
        assert lines[0].split() == ["link", "state", "for", "weight", "flaps", "why"]
        assert lines[1].startswith("rail1"), "the worst is the first"
        lines, _ = fabricctl(node, "timeline", "--since", "1h")
        first = next(n for n, line in enumerate(lines) if "lost its carrier" in line)
        assert first < PAGE
        assert not any("path_state" in line or "weight=" in line for line in lines)
    node.daemon.kill(signal.SIGSTOP)
    try:
        began = time.monotonic()
        _, said = fabricctl(node, "links", code=1)
        took_s = time.monotonic() - began
        assert "is stopped by a signal" in said
        assert "FabricDaemonDown.md" in said
        print(f"a stopped daemon is told after {took_s:.1f} s")
        stopped, said = fabricctl(node, "timeline", "--config", str(node.config_path))
        assert "read from" in said
    finally:
        node.daemon.kill(signal.SIGCONT)
    node.daemon.stop(grace_s=0.0)  # killed alone, it would be started again
    dead, said = fabricctl(node, "timeline", "--config", str(node.config_path))
    assert "is fabricd running?" in said
    for lines in (stopped, dead):
        assert any("lost its carrier" in line for line in lines)
