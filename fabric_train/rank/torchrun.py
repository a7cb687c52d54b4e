"""Sets what torchrun sets in the environment of a rank, once this process has one.

``LOCAL_RANK``, ``LOCAL_WORLD_SIZE`` and ``WORLD_SIZE`` are there from its start: see
``messages.rank_environment``.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from fabric_train.messages import rank_environment as names
from fabric_train.messages.addresses import split
from fabric_train.messages.process import Assignment


def expect_rank(rank: int, environment: MutableMapping[str, str] = os.environ) -> None:
    """This process has ``rank``, or builds its model for it."""
    environment[names.RANK] = str(rank)
    of_host = int(environment.get(names.LOCAL_WORLD_SIZE) or 1)
    environment[names.GROUP_RANK] = str(rank // of_host)


def tell_rank(assignment: Assignment, environment: MutableMapping[str, str] = os.environ) -> None:
    """This process has the rank of ``assignment``, if that has one."""
    if assignment.rank is None:
        return
    expect_rank(assignment.rank, environment)
    environment[names.WORLD_SIZE] = str(assignment.world)
    if assignment.local_rank is not None:
        environment[names.LOCAL_RANK] = str(assignment.local_rank)
    if assignment.master:
        address, port = split(assignment.master)
        environment[names.MASTER_ADDR], environment[names.MASTER_PORT] = address, str(port)
