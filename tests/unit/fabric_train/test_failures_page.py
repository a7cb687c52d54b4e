"""docs/design/takeover-failures.md names tests that exist, and which of them run at night only."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs/design/takeover-failures.md"
REFERENCE = re.compile(r"`((?:unit|lab|gpu)/[^`:]*\.py|…)(?:::(\w+))?`( ☾)?")


def references():
    """File, test (empty: all of it), and whether the page calls it nightly."""
    for line in PAGE.read_text().splitlines():
        file = ""
        for name, test, night in REFERENCE.findall(line):
            file = file if name == "…" else name
            yield file, test, bool(night)


def is_nightly(text, test):
    marks = re.search(r"^pytestmark = (.*)$", text, re.MULTILINE)
    if marks and "nightly" in marks[1]:
        return True
    found = re.search(rf"((?:^[@ )].*\n)*)^(?:async )?def {test}\(", text, re.MULTILINE)
    return "@pytest.mark.nightly" in found[1]


def test_every_reference_is_a_test_and_its_time_is_right():
    named = list(references())
    assert len(named) > 50
    for file, test, night in named:
        text = (TESTS / file).read_text()
        assert not test or f"def {test}(" in text, f"{file}::{test}"
        assert not test or is_nightly(text, test) == night, f"{file}::{test}"
