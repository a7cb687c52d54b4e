"""A bare Debian 12 with a fresh clone of the last commit: ``./run`` brings all that it needs."""

import re

import pytest

from lab import fresh

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2400)]


def test_run_installs_builds_and_tests_on_a_bare_debian():
    with fresh.machine() as tree:
        for absent in ("usr/bin/git", "usr/bin/python3", "usr/bin/cmake", "usr/bin/sudo"):
            assert not (tree / absent).exists(), f"the bare system already has {absent}"
        built = fresh.enter(tree, ["./run", "build"], 1200)
        assert built.returncode == 0, built.stdout[-6000:]
        again = fresh.enter(
            tree, ["bash", "-c", "TIMEFORMAT='again %R'; time ./run build"], 60
        ).stdout
        seconds = re.search(r"^again ([\d.]+)$", again, re.MULTILINE)
        assert seconds is not None, again
        assert float(seconds[1]) < 3, f"a second start took {seconds[1]} s"
        tested = fresh.enter(tree, ["./run", "test", "unit"], 1200)
        assert tested.returncode == 0, tested.stdout[-6000:]
