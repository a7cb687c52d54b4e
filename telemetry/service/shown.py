"""Words of others on a terminal: what could act on it is replaced. Pure.

A job, a peer, a switch or a page may claim any text. Control characters move the cursor, change
the title or hide lines; characters of format turn the direction of writing around; a line end
makes a claim look like a line of ours.
"""

from __future__ import annotations


def shown(text: str) -> str:
    """``text`` with ``?`` in place of each character that is not printable, but for line ends."""
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)


def escaped(text: str) -> str:
    r"""The same for a label or a key: ``\x1b`` in place of such a character, ``\\`` of ``\``.

    Two texts stay two: one metric with the same labels twice would spoil the whole scrape.
    """
    return "".join(
        one if one.isprintable() and one != "\\" else one.encode("unicode_escape").decode()
        for one in text
    )


def on_one_line(text: str) -> str:
    """The same, line ends replaced, too."""
    return shown(text).replace("\n", "?")
