"""Fixtures of several files of lab tests."""

import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from probe_pair import Pair, until

from lab.node import REPO


@pytest.fixture(scope="session")
def open_checkout():
    """The checkout by a path that every user may follow, for what the tests run as another user.

    A clone in /root is closed to others: then it is mounted once more, where they can get at it.
    """
    if all(above.stat().st_mode & 0o001 for above in REPO.parents):
        yield REPO
        return
    where = Path(tempfile.mkdtemp(prefix="fabric-checkout-", dir="/run"))
    subprocess.run(["mount", "--bind", REPO, where], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", where], check=True)
        where.rmdir()


@pytest.fixture
def pair(lab_root, tmp_path):
    pair = Pair(tmp_path)
    try:
        pair.up()
        yield pair
        for host in pair.hosts:
            if host.process is not None:
                assert host.process.poll() is None, host.log.read_text()
                assert host.stop() == 0, host.log.read_text()
            log = host.log.read_text() if host.log.exists() else ""
            assert "ERROR: AddressSanitizer" not in log
            assert "runtime error" not in log
    finally:
        pair.down()


@pytest.fixture
def probing(pair):
    """Both probe and hear each other."""
    for host in pair.hosts:
        host.start()
        host.configure()
    for host in pair.hosts:
        until(host.heard, "all paths heard")
    return pair


@pytest.fixture(scope="module")
def two_hosts(module_cluster):
    return module_cluster(hosts=2, rails=2)


@pytest.fixture
def two(two_hosts):
    """A lab of two hosts that the tests of a module share; each leaves it whole."""
    yield two_hosts
    for node in two_hosts.nodes:
        assert all(node.carrier(rail) for rail in (0, 1)), "a test left a fault in force"
        for pid in node.pids():
            os.kill(pid, signal.SIGKILL)
