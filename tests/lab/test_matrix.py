"""The fault matrix: real processes and packets, every byte verified.

The pairwise selection runs with the lab tier, the whole matrix with ``./run test nightly``. Cells
that can share a job do (`lab.matrix.stand`); the job's end in good order is a test of its own.
"""

import itertools
import os
import shutil
from pathlib import Path

import pytest

from lab.cluster import Cluster
from lab.matrix.cells import TURNS, Stage, all_cells, selection
from lab.matrix.stand import HOSTS, RAILS, RATE, Stand

REPO = Path(__file__).resolve().parents[2]
KEPT = REPO / "build" / "log" / "lab" / "matrix"
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
def stand(lab_root, request):
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.unlink(missing_ok=True)
    failed = request.session.testsfailed
    with Cluster(f"t{os.getpid()}-matrix", hosts=HOSTS, rails=RAILS, rate=RATE) as lab:
        stand = Stand(lab, RECORD)
        yield stand
        stand.abandon()
        for node in lab.nodes:
            node.stop_services()
        reports = lab.sanitizer_reports()
        if reports or request.session.testsfailed > failed:
            shutil.rmtree(KEPT, ignore_errors=True)
            shutil.copytree(lab.dir.root, KEPT, ignore=lambda path, names: not_kept(path, names))
            print(f"files of the lab are kept in {KEPT.relative_to(REPO)}")
    assert not reports, "logs hold sanitizer reports or tracebacks:\n" + "\n".join(reports)


def not_kept(path, names):
    return [n for n in names if (Path(path) / n).is_socket() or n in {"ring", "page"}]


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
