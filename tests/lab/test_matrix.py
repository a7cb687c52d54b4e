"""The fault matrix: real processes and packets, every byte verified.

The pairwise selection runs with the lab tier, the whole matrix with ``./run test nightly``. Cells
that can share a job do (`lab.matrix.testbed`); the job's end in good order is a test of its own.
"""

import itertools
import os
from pathlib import Path

import pytest

from lab.matrix.cells import TURNS, Fault, Stage, all_cells, selection
from lab.matrix.daemons import DAEMONS
from lab.matrix.fault_actions import FAULT_ACTIONS
from lab.matrix.own import OWN
from lab.matrix.testbed import HOSTS, RAILS, RATE, FaultTestbed

REPO = Path(__file__).resolve().parents[2]
RECORD = REPO / "build" / "log" / f"matrix-{os.environ.get('FABRIC_BUILD', 'release')}.jsonl"
TURN = int(os.environ.get("FABRIC_MATRIX_TURN", "0")) % TURNS


def with_ends(cells):
    """The cells and, after those that share a job, None: its end."""
    found = []
    for (stage, _, _), group in itertools.groupby(cells, lambda c: (c.stage, c.pattern, c.size)):
        found += [*group, *([] if stage is Stage.OWN else [None])]
    return found


def parameters(cells):
    found, last = [], None
    for cell in with_ends(cells):
        name = str(cell) if cell else f"end-{last.stage}-{last.pattern}-{last.size}"
        found.append(pytest.param(cell, id=name))
        last = cell or last
    return found


@pytest.fixture(scope="module")
def testbed(module_cluster):
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.unlink(missing_ok=True)
    testbed = FaultTestbed(module_cluster(hosts=HOSTS, rails=RAILS, rate=RATE), RECORD)
    yield testbed
    testbed.abandon()


def test_nothing_is_left_out():
    """Every fault of the matrix is struck by somebody."""
    assert {*FAULT_ACTIONS, *OWN, *DAEMONS} == set(Fault)
    assert len(FAULT_ACTIONS) + len(OWN) + len(DAEMONS) == len(Fault)


def strike(testbed, cell):
    if cell is None:
        testbed.finish()
    else:
        testbed.run(cell)


@pytest.mark.parametrize("cell", parameters(selection(TURN)))
def test_selected(testbed, cell):
    strike(testbed, cell)


@pytest.mark.nightly
@pytest.mark.parametrize("cell", parameters(all_cells()))
def test_all(testbed, cell):
    strike(testbed, cell)
