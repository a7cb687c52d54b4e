"""The fault matrix: real processes and packets, every byte verified.

The pairwise selection runs with the lab tier, the whole matrix with ``./run test nightly``. Cells
that can share a job do (`lab.matrix.stand`); the job's end in good order is a test of its own.
"""

import itertools
import os
from pathlib import Path

import pytest

from lab.matrix.cells import TURNS, Fault, Stage, all_cells, selection
from lab.matrix.daemons import DAEMONS
from lab.matrix.own import OWN
from lab.matrix.stand import HOSTS, RAILS, RATE, Stand
from lab.matrix.strikes import STRIKES

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
def stand(module_cluster):
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.unlink(missing_ok=True)
    stand = Stand(module_cluster(hosts=HOSTS, rails=RAILS, rate=RATE), RECORD)
    yield stand
    stand.abandon()


def test_nothing_is_left_out():
    """Every fault of the matrix is struck by somebody."""
    assert {*STRIKES, *OWN, *DAEMONS} == set(Fault)
    assert len(STRIKES) + len(OWN) + len(DAEMONS) == len(Fault)


def strike(stand, cell):
    if cell is None:
        stand.finish()
    else:
        stand.run(cell)


@pytest.mark.parametrize("cell", parameters(selection(TURN)))
def test_selected(stand, cell):
    strike(stand, cell)


@pytest.mark.nightly
@pytest.mark.parametrize("cell", parameters(all_cells()))
def test_all(stand, cell):
    strike(stand, cell)
