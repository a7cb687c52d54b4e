"""What ``./run test TIER WORDS…`` hands to pytest."""

from pathlib import Path

import pytest

from lab.testrun.selection import main, selected

UNIT = Path("tests/unit")


@pytest.fixture
def root(tmp_path):
    for folder in ("tests/unit/docs", "tests/unit/fabricd/links", "docs", "lab"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tests/unit/fabricd/links/test_a.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ([], ["tests/unit"]),
        (["-k", "damping"], ["tests/unit", "-k", "damping"]),
        (["-x", "-q"], ["tests/unit", "-x", "-q"]),
        (["fabricd/links"], ["tests/unit/fabricd/links"]),
        (["tests/unit/fabricd/links"], ["tests/unit/fabricd/links"]),
        (
            ["fabricd/links/test_a.py::test_x[1]"],
            ["tests/unit/fabricd/links/test_a.py::test_x[1]"],
        ),
        (["-x", "docs"], ["-x", "tests/unit/docs"]),
        (["fabricd", "-k", "docs"], ["tests/unit/fabricd", "-k", "docs"]),
    ],
)
def test_paths_begin_at_the_root_or_at_the_tiers_folder(root, words, arguments):
    assert selected(UNIT, words, root) == arguments


def test_a_tier_of_several_folders_has_all_of_them_unless_one_is_named(root, capsys):
    also = [Path("tests/attack")]
    assert selected(UNIT, ["-x"], root, also) == ["tests/unit", "tests/attack", "-x"]
    assert selected(UNIT, ["docs"], root, also) == ["tests/unit/docs"]
    assert main(["nowhere,elsewhere", "-x"]) == 0
    assert capsys.readouterr().out == "nowhere\0elsewhere\0-x\0"


@pytest.mark.parametrize("option", ["-k", "-m", "--ignore"])
@pytest.mark.parametrize("value", ["docs", "fabricd", "lab"])
def test_the_value_of_an_option_is_no_folder_though_there_is_one(root, option, value):
    assert selected(UNIT, [option, value], root) == ["tests/unit", option, value]


def test_a_value_that_looks_like_an_option_takes_no_value_itself(root):
    assert selected(UNIT, ["-k", "-m", "docs"], root) == ["-k", "-m", "tests/unit/docs"]


def test_a_name_that_is_nowhere_is_pytests_to_refuse(root):
    assert selected(UNIT, ["fabricd", "no/such"], root) == ["tests/unit/fabricd", "no/such"]


def test_words_with_blanks_and_newlines_arrive_whole(capsys):
    assert main(["nowhere", "-k", "a or b", "c\nd"]) == 0
    assert capsys.readouterr().out == "nowhere\0-k\0a or b\0c\nd\0"
