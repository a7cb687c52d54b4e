"""Fixtures that need root: labs. Each lab test ends with a look into every log of its lab."""

import gc
import hashlib
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from lab.cluster import Cluster
from lab.lifecycle import registry
from lab.network import netns
from lab.testrun import run_report

REPO = Path(__file__).resolve().parent.parent
KEPT = REPO / "build" / "log" / "lab"
LONGEST_ID = 200
PROCESS_TIERS = [REPO / "tests" / tier for tier in ("lab", "vm", "gpu")]
_numbers = itertools.count()

settings.register_profile(
    "fabric",
    # A few here; the nightly run asks for many more (lab/testrun/nightly.py).
    max_examples=int(os.environ.get("FABRIC_EXAMPLES", "40")),
    # How long an example takes is the machine's doing: without this, 200 ms fail it.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fabric")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Long values are named by their beginning and a hash.

    A test's id is in the environment of what the test starts, where the kernel takes 128 KiB.
    """
    if not isinstance(val, str | bytes) or len(val) <= LONGEST_ID:
        return None
    data = val.encode(errors="backslashreplace") if isinstance(val, str) else val
    begin = data[:16].decode("ascii", errors="replace")
    printable = "".join(one if one.isascii() and one.isprintable() else "." for one in begin)
    return f"{printable}...{hashlib.sha256(data).hexdigest()[:8]}"


def _shares(item: pytest.Item) -> bool:
    """Whether it shares something with other tests of its module: a lab, a job."""
    assert isinstance(item, pytest.Function)
    found = item._fixtureinfo.name2fixturedefs.values()
    return any(definition.scope == "module" for definitions in found for definition in definitions)


@pytest.hookimpl(tryfirst=True)  # xdist looks for groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What lies under tests/lab and tests/vm carries that marker.

    Lab tests run beside each other (lab/test.sh). Those of a module that share a fixture stay
    together, in their order; the others go to whoever is free.
    """
    for item in items:
        for tier in ("lab", "vm"):
            if f"/tests/{tier}/" in str(item.path):
                item.add_marker(tier)
        # A hang is what this is for; the deadlines inside of a test are the ones that speak.
        if item.get_closest_marker("lab") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))
        if item.get_closest_marker("lab") and _shares(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collecting thousands of tests makes objects that stay: no search for garbage among them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call):
    """Let fixtures know how the test went."""
    report = yield
    if report.when == "call":
        item.stash[_failed] = report.failed
    return report


_failed = pytest.StashKey[bool]()


def _runs_processes(config: pytest.Config, argument: str) -> bool:
    where = Path(config.invocation_params.dir, argument.partition("::")[0]).resolve()
    return any(where.is_relative_to(tier) or tier.is_relative_to(where) for tier in PROCESS_TIERS)


def pytest_configure(config: pytest.Config) -> None:
    """The report's path is this run's alone, and which warnings are failures."""
    # What a test starts must not inherit it.
    config.stash[_report_path] = os.environ.pop(run_report.ENV, None)
    if any(_runs_processes(config, argument) for argument in config.args):
        # A lab ends processes by pid, and leaves their Popen objects and pipes to the collector,
        # which says so in whatever test runs then.
        config.addinivalue_line("filterwarnings", "default::ResourceWarning")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep why the run ended early: by itself, or with xdist by its controller."""
    beside = session.config.pluginmanager.getplugin("dsession")
    said = session.shouldfail or session.shouldstop or getattr(beside, "shouldstop", False)
    session.config.stash[_stopped] = str(said) if said else ""


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Leave what was found to `lab.testrun.retry_alone` and `lab.testrun.totals`."""
    if (path := config.stash[_report_path]) is not None:
        report = run_report.from_stats(terminalreporter.stats, config.stash.get(_stopped, ""))
        report.write(Path(path))


_report_path = pytest.StashKey[str | None]()
_stopped = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def lab_root() -> Iterator[None]:
    """Root, and no stale labs before and after."""
    if os.geteuid() != 0:
        pytest.skip("needs root: labs are network namespaces (sudo ./run test lab)")
    if shutil.which("ip") is None or shutil.which("nft") is None:
        pytest.skip("needs iproute2 and nftables (installed by ./run)")
    with registry.lock():
        netns.ready()
    registry.clean_stale()
    yield
    registry.clean_stale()


@pytest.fixture
def lab_name(lab_root: None) -> str:
    """A name that no other lab has, so that test runs do not meet."""
    return f"t{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def cluster(lab_root: None, request: pytest.FixtureRequest) -> Iterator[Callable[..., Cluster]]:
    """Makes labs: ``cluster(hosts=2, rails=2)`` is up when it returns, and goes with the test.

    The test fails if a log of the lab holds a sanitizer report or a traceback, unless it set
    ``lab.expect_reports = True``. The files of a failed test are kept in
    build/log/lab/<file>_<test>.
    """
    yield from _labs(request.node.nodeid, lambda: request.node.stash.get(_failed, False))


@pytest.fixture(scope="module")
def module_cluster(
    lab_root: None, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Cluster]]:
    """As ``cluster``, but the labs go with the module: for tests that leave them as they were."""
    before = request.session.testsfailed
    yield from _labs(request.node.nodeid, lambda: request.session.testsfailed > before)


def _labs(name: str, failed: Callable[[], bool]) -> Iterator[Callable[..., Cluster]]:
    made: list[Cluster] = []
    reports: list[str] = []
    with ExitStack() as stack:

        def make(**arguments) -> Cluster:
            arguments.setdefault("name", f"t{os.getpid()}-{next(_numbers)}")
            lab = stack.enter_context(Cluster(**arguments))
            made.append(lab)
            return lab

        yield make
        for lab in made:
            for node in lab.nodes:
                node.stop_services()
            if not lab.expect_reports:
                reports += lab.sanitizer_reports()
        if reports or failed():
            where = KEPT / re.sub(r"[^\w.-]+", "_", name.removeprefix("tests/lab/"))
            shutil.rmtree(where, ignore_errors=True)
            for lab in made:
                shutil.copytree(
                    lab.dir.root,
                    where / lab.topology.name,
                    ignore=lambda path, names: [
                        n for n in names if (Path(path) / n).is_socket() or n in {"ring", "page"}
                    ],
                    dirs_exist_ok=True,
                )
            print(f"files of the lab are kept in {where.relative_to(REPO)}")
    assert not reports, "logs hold sanitizer reports or tracebacks:\n" + "\n".join(reports)
