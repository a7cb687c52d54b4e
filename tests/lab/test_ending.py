"""A process that ends before its job has says so while its interpreter still runs."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fabric_train.messages.process import Decoder, Ending, Release, encode

pytestmark = pytest.mark.lab

SCRIPT = """
import atexit, os, sys
from fabric_train.groups.collectives import FabricGroup
from fabric_train.rank.ending import announce_early_end, watch_loop
from fabric_train.messages.link import AgentLink

link = AgentLink(sys.argv[1], lambda _assignment: None)
announce = announce_early_end(link, FabricGroup(0, 1))
atexit.register(sys.stdin.read)  # lasts until the test has heard of the end

def loop():
    return watch_loop(iter([0, 1]), announce)

"""
LEFT = "left its loop before the job had ended"
ENDS = {
    "raise ValueError('boom')": ("ValueError: boom", 1),
    "for _ in loop(): raise ValueError('boom')": (LEFT, 1),
    "for _ in loop(): sys.exit(7)": (LEFT, 7),
    "for _ in loop(): break": (LEFT, 0),
    "for _ in loop(): pass\nlink.wait(lambda: link.released)": (None, 0),
}


@pytest.mark.parametrize("end", ENDS)
def test_every_early_end_is_told_once_and_with_its_reason(tmp_path, end):
    reason, status = ENDS[end]
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()
        with subprocess.Popen(
            [sys.executable, "-c", SCRIPT + end, path], cwd=Path(__file__).parents[3],
            stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            agent, _ = server.accept()
            with agent:
                if reason is None:
                    agent.sendall(encode(Release()))
                    process.stdin.close()
                decoder, messages = Decoder(), []
                while data := agent.recv(1 << 16):
                    messages += decoder.feed(data)
                    process.stdin.close()
            stderr = process.stderr.read()
            assert process.wait(60) == status
    assert messages == ([] if reason is None else [Ending(reason)])
    assert ("boom" in stderr) == ("boom" in end)
