"""Words of ``./run test TIER WORDS…`` as arguments of pytest, each ended by a NUL byte.

``python -m lab.testrun.selection FOLDER[,FOLDER…] WORDS…``

A file or folder (also ``FILE::TEST``) may be given from the checkout's root or from the first of
the tier's own folders on. Without one all of these are meant. Options and their values stay as they
are: in ``-k docs`` the word is no folder, though there is one of that name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

WITH_VALUE = {
    *("-k", "-m", "-n", "-p", "-c", "-o", "-r", "-W"),
    *("--deselect", "--dist", "--durations", "--ignore", "--ignore-glob", "--junitxml"),
    *("--maxfail", "--only", "--tb", "--timeout"),
}
"""Options of pytest and of the nightly run whose value is the next word."""


def selected(
    folder: Path, words: Sequence[str], root: Path = Path(), also: Sequence[Path] = ()
) -> list[str]:
    """Arguments of pytest.

    Args:
        folder: of the tier's tests, from ``root`` on.
        words: of the command line.
        root: of the checkout; default: the working directory.
        also: further folders with tests of the tier.
    """
    found: list[str] = []
    paths, value = False, False
    for word in words:
        if value or word.startswith("-"):
            value = not value and word in WITH_VALUE
            found.append(word)
            continue
        name = word.partition("::")[0]
        inside = (root / folder / name).exists()
        paths = paths or inside or (root / name).exists()
        found.append(f"{folder}/{word}" if inside else word)
    return found if paths else [str(folder), *map(str, also), *found]


def main(argv: Sequence[str] | None = None) -> int:
    """Print them."""
    folders, *words = sys.argv[1:] if argv is None else argv
    folder, *also = map(Path, folders.split(","))
    for word in selected(folder, words, also=also):
        sys.stdout.write(f"{word}\0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
