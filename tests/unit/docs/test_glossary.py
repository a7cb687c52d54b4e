"""docs/glossary.md: each row has its four cells, its place exists, and its words stand there."""

import re
from functools import cache
from typing import NamedTuple

import pytest

from lab.docs.pages import DOCS, REPO

SUFFIXES = {".py", ".h", ".cpp", ".sh", ".md"}


class Term(NamedTuple):
    """A row: names that are searched as they are, words in any case, and where."""

    names: tuple[str, ...]
    words: tuple[str, ...]
    meaning: str
    where: str

    def missing(self, text):
        """What of the term is not in ``text``."""
        plain = re.sub(r"[\s_#*/-]+", " ", text).lower()
        gone = [name for name in self.names if not re.search(rf"\b{re.escape(name)}\b", text)]
        return gone + [word for word in self.words if word.replace("-", " ").lower() not in plain]


def rows(text):
    for line in text.splitlines():
        if not line.startswith("|") or line.startswith(("| term |", "|---")):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 4, line
        parts = [part.strip() for part in cells[0].split(",")]
        names = tuple(part.strip("`") for part in parts if part.startswith("`"))
        words = tuple(part for part in parts if not part.startswith("`"))
        yield Term(names, words, cells[1], cells[2].strip("`"))


TERMS = list(rows((DOCS / "glossary.md").read_text()))


@cache
def text_of(where):
    place = REPO / where
    files = [place] if place.is_file() else sorted(place.rglob("*"))
    return "\n".join(file.read_text() for file in files if file.suffix in SUFFIXES)


@pytest.mark.parametrize("term", TERMS, ids=lambda term: " ".join(term.names + term.words))
def test_a_term_stands_where_the_glossary_says(term):
    assert (REPO / term.where).exists(), term.where
    assert term.missing(text_of(term.where)) == []
    assert term.meaning.endswith(".")
    assert len(term.meaning.split()) <= 25


def test_no_term_has_two_rows_for_one_place():
    places = [(name, term.where) for term in TERMS for name in term.names + term.words]
    assert len(TERMS) > 80
    assert sorted(places) == sorted(set(places))


def test_a_term_that_is_not_there_is_found():
    term = Term(("Link", "LinkStat"), ("hold-down", "jury"), "A.", "x")
    assert term.missing("class Link:  # of the hold\n# down") == ["LinkStat", "jury"]
    assert term.missing("a Linker") == ["Link", "LinkStat", "hold-down", "jury"]
