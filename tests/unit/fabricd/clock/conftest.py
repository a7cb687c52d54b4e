"""A clock service of host 7 without a prober, for whatever asks for one (`clock_services`)."""

import pytest
from clock_services import Stopped, services


@pytest.fixture
def clocks():
    return Stopped()


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "prober").mkdir()
    return tmp_path


@pytest.fixture
def make(run_dir, clocks):
    with services(run_dir, clocks) as start:
        yield start
