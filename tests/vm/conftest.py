"""Two machines for the whole session: a boot costs half a minute under emulation."""

from pathlib import Path

import pytest

from lab.vm import image, pair, payload


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.vm)
            # The first test of a fresh checkout builds the image, too.
            item.add_marker(pytest.mark.timeout(2400))


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
        vm.run("modprobe", "rdma_rxe").check()
        for rail in range(machines.rails):
            argv = ["rdma", "link", "add", f"rxe{rail}", "type", "rxe", "netdev", f"rail{rail}"]
            vm.run(*argv).check()
    return machines
