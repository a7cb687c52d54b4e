"""Reads the Markdown pages: sentences, code blocks, links and headings. Pure but for files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).resolve().parents[2]
DOCS = REPO / "docs"

_FENCE = re.compile(r"^ *(```+)(.*?)\n(.*?)^ *\1 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_LIST = re.compile(r"([-*+]|\d+\.)\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z*`\[(\"])")


class Block(NamedTuple):
    """One fenced block: the words after its fence, its text, and the line of the fence."""

    info: str
    text: str
    line: int


def pages() -> list[Path]:
    """All pages that a reader sees: ``docs/``, README.md and CONTRIBUTING.md."""
    return [*sorted(DOCS.rglob("*.md")), REPO / "README.md", REPO / "CONTRIBUTING.md"]


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [
        Block(found[2].strip(), found[3], text.count("\n", 0, found.start()) + 1)
        for found in _FENCE.finditer(text)
    ]


def without_code(text: str) -> str:
    """The page with its fenced blocks emptied; line numbers stay."""
    return _FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)


def sentences(text: str) -> Iterator[str]:
    """Sentences of paragraphs and list items; no tables, headings or code."""
    paragraph: list[str] = []
    for line in [*without_code(text).splitlines(), ""]:
        stripped = line.strip()
        item = _LIST.match(stripped)
        if item or not stripped or stripped.startswith(("|", "#", "!", "<", "---")):
            yield from _split(" ".join(paragraph))
            paragraph = []
        if item:
            paragraph.append(stripped[item.end() :])
        elif stripped and not stripped.startswith(("|", "#", "!", "<", "---")):
            paragraph.append(stripped)


def _split(paragraph: str) -> Iterator[str]:
    plain = re.sub(r"`[^`]*`", "`x`", paragraph)
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    yield from filter(None, _SENTENCE_END.split(plain))


def links(text: str) -> list[str]:
    """Targets of links and pictures, in order."""
    plain = re.sub(r"`[^`\n]*`", "", without_code(text))
    return [first or second for first, second in _LINK.findall(plain)]


def anchors(text: str) -> set[str]:
    """The ids that a site gives to the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?) *$", without_code(text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip())
        name, count = slug, 0
        while name in found:
            count += 1
            name = f"{slug}_{count}"
        found.add(name)
    return found
