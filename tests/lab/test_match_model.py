"""The Promela model of tags (docs/design/model/match.pml) holds, and would show it if not.

Source: docs/design/model/README.md, which says what is modelled and what each run covers.
"""

import re
from pathlib import Path

import pytest

from tests.lab import spin_model

MODEL = spin_model.MODELS / "match.pml"
STUCK = "invalid end state"
# Each is a rule of the matching left out, and what the search finds then.
MUTATIONS = {
    "MUT_SINGLE_TAG_IGNORED": "assertion violated (tag_of",
    "MUT_GUESS_OF_ANOTHER_TAG": STUCK,
    "MUT_TAG_NOT_COMPARED": "assertion violated (tag_of",
    "MUT_ERA_NOT_COMPARED": "assertion violated (nth_of",
    "MUT_TAG_BREAKS_NOTHING": "assertion violated (nth_of",
    "MUT_NOT_TAKEN_BACK": STUCK,
    "MUT_KEPT_STAYS": STUCK,
}

pytestmark = spin_model.NEEDS_SPIN


@pytest.mark.nightly
def test_every_message_lands_in_the_slot_of_its_tag(tmp_path: Path) -> None:
    spin_model.assert_holds(spin_model.verify(MODEL, tmp_path, {}), at_least=340_000)


@pytest.mark.nightly
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_model_finds_what_breaks_matching(tmp_path: Path, mutation: str) -> None:
    report = spin_model.verify(MODEL, tmp_path, {mutation: None})
    found = re.search(r"^pan:1: (.*) \(at depth", report, re.MULTILINE)
    assert found, report
    assert MUTATIONS[mutation] in found.group(1), report


def test_every_mutation_of_the_model_is_tried() -> None:
    assert set(re.findall(r"MUT_[A-Z_]+[A-Z]", MODEL.read_text())) == set(MUTATIONS)
