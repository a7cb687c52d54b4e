"""A job that trains, for tests of what may not disturb it."""

import pytest
from job_world import World
from test_partitions import run


@pytest.fixture
def world():
    world = World(11, computes=1)
    run(world, 4)
    assert world.progress[0] == 1
    return world
