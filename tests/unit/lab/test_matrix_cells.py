"""The fault matrix as a description: what is in it, and what CI picks."""

import itertools

import pytest

from lab.matrix.cells import (
    CLASSES,
    PATTERNS,
    SIZES,
    TURNS,
    Cell,
    Fault,
    Outcome,
    Stage,
    all_cells,
    selection,
)

CLASS_OF = {fault: name for name, faults in CLASSES.items() for fault in faults}


def test_every_fault_is_of_one_class():
    listed = [fault for faults in CLASSES.values() for fault in faults]
    assert sorted(listed) == sorted(Fault)


def test_the_full_matrix_has_every_combination_once():
    cells = all_cells()
    assert len(cells) == len(set(cells)) == len(Fault) * 9
    assert {(c.fault, c.pattern, c.size) for c in cells} == set(
        itertools.product(Fault, PATTERNS, SIZES)
    )


@pytest.mark.parametrize("turn", range(TURNS))
def test_the_selection_is_pairwise_and_small(turn):
    cells = selection(turn)
    assert 20 <= len(cells) <= 27
    assert cells == selection(turn)
    assert {c.fault for c in cells} == set(Fault)
    assert {(CLASS_OF[c.fault], c.pattern) for c in cells} == set(
        itertools.product(CLASSES, PATTERNS)
    )
    assert {(CLASS_OF[c.fault], c.size) for c in cells} == set(itertools.product(CLASSES, SIZES))
    assert {(c.pattern, c.size) for c in cells} == set(itertools.product(PATTERNS, SIZES))


def test_all_turns_together_are_the_full_matrix():
    assert {c for turn in range(TURNS) for c in selection(turn)} == set(all_cells())


@pytest.mark.parametrize("cells", [all_cells(), selection()], ids=["all", "selection"])
def test_cells_that_share_a_job_stand_together(cells):
    shared = [(c.stage, c.pattern, c.size) for c in cells if c.stage is not Stage.OWN]
    assert len(list(itertools.groupby(shared))) == len(set(shared))
    stages = [stage for stage, _ in itertools.groupby(c.stage for c in cells)]
    assert stages == list(Stage), "daemons are started once, and last"


def test_expectations():
    def outcome(fault):
        return Cell(fault, "ring", "8B").outcome

    assert outcome(Fault.REBOOTED_PEER) is Outcome.ONE_ERROR
    assert outcome(Fault.CLOSE) is Outcome.ENDS
    goes_on = [f for f in Fault if outcome(f) is Outcome.GOES_ON]
    assert len(goes_on) == len(Fault) - 3
