"""Fixtures of several files of lab tests."""

import pytest
from probe_pair import Pair, until


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
