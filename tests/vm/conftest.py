"""Machines for the whole session: a boot costs half a minute under emulation.

Tests run beside each other (lab/test.sh); those that share machines stay together, in their order.
"""

import contextlib
from pathlib import Path

import pytest
import watched

from lab.node import build_dir
from lab.vm import image, pair, payload
from lab.vm.rdma import namespaces as rdma_namespaces
from lab.vm.rdma import pair as rdma_pair
from lab.vm.wire import VmError

SHARED = ("hosts", "machines", "namespaces", "two_machines")
"""Fixtures that boot machines. Those of `test_packaging.py` have the most to do, and get a pair of
their own where tests run beside each other."""


@pytest.hookimpl(tryfirst=True)  # xdist looks for groups in the same hook
def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.vm)
            # The first test of a fresh checkout builds the image, too.
            item.add_marker(pytest.mark.timeout(2400))
            group = next((name for name in SHARED if name in item.fixturenames), None)
            if group is not None:
                item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def machines():
    """Two booted machines with two rails, the product mounted at /opt/fabricd."""
    base = image.base()
    with pair.booted(rails=2, mounts={payload.PREFIX: payload.disk(base)}) as both:
        yield both


@pytest.fixture(scope="session")
def rdma(machines):
    """The same with a soft-RoCE device ``rxe<r>`` on each rail."""
    for vm in (machines.alpha, machines.beta):
        watched.add_rxe(vm, machines.rails)
    return machines


@pytest.fixture(scope="session")
def namespaces():
    """An RDMA lab of four hosts and two rails on one machine, with plugin and fabric-perf."""
    with rdma_namespaces.booted("tests", hosts=4, rails=2) as lab:
        lab.push(build_dir())
        _labs["namespaces"] = lab
        yield lab
        del _labs["namespaces"]


@pytest.fixture(scope="session")
def two_machines():
    """An RDMA lab of two machines with Debian's own kernel, with plugin and fabric-perf."""
    with rdma_pair.booted("tests-pair", rails=2) as lab:
        lab.push(build_dir())
        _labs["two_machines"] = lab
        yield lab
        del _labs["two_machines"]


_labs = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """An RDMA lab stands still during tests that do not use it: they need the CPU."""
    for fixture, lab in _labs.items():
        with contextlib.suppress(VmError, OSError):  # a test may have left it without a machine
            lab.set_paused(paused=fixture not in item.fixturenames)
