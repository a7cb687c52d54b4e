"""What unit tests need of the native build."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
BUILD_S = 900
"""The library may have to be compiled whole."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Time to build for the tests that may have to."""
    for item in items:
        if "native" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(BUILD_S))


@pytest.fixture(scope="session")
def native() -> Callable[[str], Path]:
    """Files of the native build: ``native("nccl_plugin/fabric_layout_dump")`` is up to date.

    They are those of ``build/$FABRIC_BUILD``. A tier that has built all of it says so in
    FABRIC_BUILT (lab/test.sh); otherwise the file is built when a test asks for it.
    """
    build = os.environ.get("FABRIC_BUILD", "release")

    def path(file: str) -> Path:
        found = REPO / "build" / build / file
        if os.environ.get("FABRIC_BUILT") != build:
            subprocess.run([REPO / "run", "build", build, file], check=True)
        assert found.exists(), f"{build} has no {file}"
        return found

    return path
