"""The Promela model of fence and replay (docs/design/model/) holds, and would show if it did not.

Source: docs/design/model/README.md, which says what is modelled and what each run covers.
"""

import re
from pathlib import Path

import pytest

from tests.lab import spin_model
from tests.lab.spin_model import assert_holds

MODEL = spin_model.MODELS / "fence.pml"
# Each is a rule of the protocol left out, found by the first sort of run that can see it.
SAFETY_MUTATIONS = {
    "MUT_REPLAY_BEFORE_ANSWER": "group>=consumed",
    "MUT_REPLAY_OF_LIVING": "group>=consumed",
    "MUT_ANSWER_OF_ANOTHER": "group>=consumed",
    "MUT_FENCE_LEAVES_OPEN": "group>=consumed",
    "MUT_OLD_EPOCH": "group>=consumed",
    "MUT_OLD_CHUNK": "group>=consumed",
    "MUT_RETIRED_RETURNS": "group>=consumed",
    "MUT_DONE_WHEN_WRITTEN": "have>>",  # not all of the message's chunks
    "MUT_CTS_AS_THEY_COME": "content[",
    "MUT_FENCE_NOT_AWAITED": "group>=consumed",
}
# Left out where the end of a connection takes time.
ONE_SIDED_MUTATIONS = {"MUT_FENCE_NOT_AWAITED"}
LIVENESS_MUTATIONS = ["MUT_NOTHING_REPLAYED", "MUT_NOT_TOLD"]

pytestmark = spin_model.NEEDS_SPIN


def verify(tmp_path: Path, defines: dict[str, int | None], *, liveness: bool = False) -> str:
    """All states of the model of fence and replay."""
    return spin_model.verify(MODEL, tmp_path, defines, liveness=liveness)


@pytest.mark.parametrize(
    ("defines", "states"),
    [
        ({"FAULTS": 2, "M": 2, "C": 1, "B": 1}, 400_000),
        pytest.param(
            {"ONE_SIDED": None, "FAULTS": 2, "M": 2, "C": 1, "B": 1},
            560_000,
            marks=pytest.mark.nightly,
        ),
        pytest.param({"FAULTS": 1, "M": 2, "C": 2, "B": 1}, 60_000, marks=pytest.mark.nightly),
        pytest.param({"FAULTS": 1, "M": 3, "C": 1, "B": 2}, 180_000, marks=pytest.mark.nightly),
    ],
)
def test_safety(tmp_path: Path, defines: dict[str, int | None], states: int) -> None:
    assert_holds(verify(tmp_path, defines), at_least=states)


def test_progress(tmp_path: Path) -> None:
    report = verify(tmp_path, {"FAULTS": 1, "M": 2}, liveness=True)
    assert "acceptance   cycles \t+ (fairness enabled)" in report, report
    assert_holds(report, at_least=80_000)


@pytest.mark.nightly
@pytest.mark.parametrize("mutation", SAFETY_MUTATIONS)
def test_the_model_finds_what_breaks_safety(tmp_path: Path, mutation: str) -> None:
    # An answer is mistaken for another only where there are two fences.
    faults = 2 if mutation == "MUT_ANSWER_OF_ANOTHER" else 1
    defines: dict[str, int | None] = {"FAULTS": faults, "B": 2, mutation: None}
    if mutation in ONE_SIDED_MUTATIONS:
        defines["ONE_SIDED"] = None
    report = verify(tmp_path, defines)
    found = re.search(r"^pan:1: assertion violated (.*) \(at depth", report, re.MULTILINE)
    assert found, report
    assert SAFETY_MUTATIONS[mutation] in found.group(1), report


@pytest.mark.nightly
@pytest.mark.parametrize("mutation", LIVENESS_MUTATIONS)
def test_the_model_finds_what_stops_progress(tmp_path: Path, mutation: str) -> None:
    report = verify(tmp_path, {"FAULTS": 1, "M": 1, mutation: None}, liveness=True)
    assert "pan:1: acceptance cycle" in report, report


def test_every_mutation_of_the_model_is_tried() -> None:
    assert set(re.findall(r"MUT_[A-Z_]+[A-Z]", MODEL.read_text())) == {
        *SAFETY_MUTATIONS,
        *LIVENESS_MUTATIONS,
    }


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("defines", "liveness", "states"),
    [
        ({"FAULTS": 2, "M": 2, "C": 2, "B": 1}, False, 2_900_000),
        ({"FAULTS": 3, "M": 2, "C": 1, "B": 1}, False, 5_000_000),
        ({"FAULTS": 2, "M": 1, "C": 1, "B": 1}, True, 260_000),
        ({"ONE_SIDED": None, "FAULTS": 1, "M": 2, "C": 2, "B": 1}, False, 73_000),
        ({"ONE_SIDED": None, "FAULTS": 1, "M": 2, "C": 1, "B": 1}, True, 100_000),
    ],
)
def test_deeper(
    tmp_path: Path, defines: dict[str, int | None], liveness: bool, states: int
) -> None:
    assert_holds(verify(tmp_path, defines, liveness=liveness), at_least=states)
