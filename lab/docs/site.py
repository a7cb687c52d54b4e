"""What mkdocs calls for each page (``hooks`` of mkdocs.yml).

A block may bear a name after its language (``sh units``), by which tests follow it. Markdown for
sites knows no such name and would not see the block, nor what stands below it.
"""

import re

_NAMED = re.compile(r"^( *```\w+) [\w-]+$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """The page without the names of its blocks."""
    return _NAMED.sub(r"\1", markdown)
