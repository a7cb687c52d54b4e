"""The timeline where no daemon answers, and a stopped daemon that nobody waits for."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from faulty_host import FLAPS, story
from typer.testing import CliRunner

import fabricd.cli
from fabricd.cli import client, show_timeline
from fabricd.views.moments import moments
from telemetry.timeline import Timeline


@pytest.fixture
def stored(tmp_path):
    """A state directory with the story, and a configuration that names it."""
    state = tmp_path / "state"
    state.mkdir()
    with Timeline(state / "timeline.db", host="h") as store:
        store.append(list(story(time.time_ns() - 3600 * 10**9, time.monotonic_ns())))
    config = tmp_path / "fabricd.toml"
    config.write_text(f'[paths]\nstate_dir = "{state}"\n[[links]]\nnetdev = "rail1"\nrail = 1\n')
    return tmp_path


def run(tmp_path, *words, code=0):
    line = ["timeline", "--socket", str(tmp_path / "ctl.sock"), *words]
    done = CliRunner().invoke(fabricd.cli.app, line)
    assert done.exit_code == code, done.output
    return done.output


def test_a_dead_daemons_history_is_whole(stored):
    text = run(stored, "--config", str(stored / "fabricd.toml"))
    assert f"lost its carrier {FLAPS} times" in text
    assert "is fabricd running?" in text
    assert f"read from {stored}/state" in text
    assert "docs/operate/runbook/FabricDaemonDown.md" in text
    flaps = run(stored, "--state-dir", str(stored / "state"), "--kind", "flap", "--json")
    assert flaps.count('"kind": "flap"') == FLAPS
    assert "is fabricd running" not in flaps, "JSON alone"
    none = run(stored, "--state-dir", str(stored / "state"), "--link", "rail7")
    assert "no such rows" in none


def test_a_store_that_is_none_is_said_with_both_reasons(tmp_path):
    text = run(tmp_path, "--config", str(tmp_path / "none.toml"), "--state-dir",
               str(tmp_path / "nowhere"), code=1)  # fmt: skip
    assert "the store cannot be read" in text
    assert "--state-dir" in text


def test_a_broken_configuration_hides_no_history(stored, monkeypatch):
    (stored / "fabricd.toml").write_text("[[links]\n")
    monkeypatch.setattr("fabricd.cli.timeline_command.DEFAULT_STATE", stored / "state")
    assert "lost its carrier" in run(stored, "--config", str(stored / "fabricd.toml"))


LISTENS = """
import signal, socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print("up", flush=True)
signal.pause()
"""


def test_a_stopped_daemon_is_told_at_once(stored):
    path = stored / "ctl.sock"
    with subprocess.Popen(
        [sys.executable, "-c", LISTENS, str(path)], stdout=subprocess.PIPE, text=True
    ) as daemon:
        try:
            assert daemon.stdout.readline() == "up\n"
            daemon.send_signal(signal.SIGSTOP)
            os.waitpid(daemon.pid, os.WUNTRACED)
            with pytest.raises(client.UnreachableError, match=f"process {daemon.pid}.*stopped"):
                client.request(path, {"op": "status"}, limit_s=3600)
            text = run(stored, "--config", str(stored / "fabricd.toml"))
            assert f"kill -CONT {daemon.pid}" in text
            assert f"{FLAPS} times" in text
        finally:
            daemon.kill()


def test_a_daemon_that_is_silent_is_waited_for_as_long_as_said(tmp_path):
    path = tmp_path / "ctl.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with pytest.raises(client.UnreachableError, match=r"no answer within 0.2 s"):
            client.request(path, {"op": "status"}, silence_s=0.2)


def test_a_stream_says_that_nothing_came(tmp_path):
    path = tmp_path / "ctl.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        lines = client.stream(path, {"op": "events"}, pause_s=0.05)
        import threading

        def serve():
            connection, _ = listening.accept()
            connection.recv(4096)
            connection.sendall(b'{"ok": true}\n{"n": 1}\n{"n"')
            peers.append(connection)

        peers = []
        thread = threading.Thread(target=serve)
        thread.start()
        assert next(lines) == {"n": 1}
        assert next(lines) is None, "half a line is none"
        thread.join()
        peers[0].sendall(b": 2}\n")
        assert next(line for line in lines if line is not None) == {"n": 2}
        peers[0].close()
        with pytest.raises(client.DaemonError, match="closed"):
            list(lines)


def test_each_day_has_its_heading():
    rows = [
        {"kind": "daemon", "wall_ns": at, "mono_ns": at, "reason": "started"}
        for at in (day * 86400 * 10**9 for day in (20000, 20000, 20002))
    ]
    days = show_timeline.by_day(moments(rows))
    assert [len(found) for _, found in days] == [1, 1]
    assert days[0][1][0].text == "started (× 2)"
