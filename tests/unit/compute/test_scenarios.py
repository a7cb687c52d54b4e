"""The scenarios that matter, as files that a person reads: ``scenario_runner`` has the commands."""

import os
from pathlib import Path

import pytest
from scenario_runner import Scenario

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_decided_is_what_the_file_says(path):
    scenario = Scenario(path)
    came = scenario.play()
    if os.environ.get("FABRIC_REWRITE"):
        path.write_text(came)
    assert came == scenario.text


def test_there_are_the_twenty_that_matter():
    assert len(FILES) >= 20
