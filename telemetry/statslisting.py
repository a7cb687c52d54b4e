"""The names in the stats directory, listed a few at a time: anybody may have put millions there."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

MAX_SUBDIRECTORIES = 256
_NAME = re.compile(r"\d{1,10}-\d{1,20}\.page\Z")
JOBS = "jobs"
"""Root's own directory, in which root makes directories of jobs: read two levels deep."""
SUBDIRECTORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")


def owned_by_root(status: os.stat_result) -> bool:
    """Whether nobody but root can make, rename or remove anything in that directory."""
    return status.st_uid == 0 and not status.st_mode & 0o022


class Listing:
    """One pass over a stats directory and its subdirectories.

    Attributes:
        entries: names met so far, of whatever kind.
        refused: what was left aside, by reason: name, too_many, open (the
            directory itself), unopened (a subdirectory).
    """

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self.entries = 0
        self.refused: Counter[str] = Counter()
        self._path = path
        self._subdirectories: list[str] = []
        self._of_root = False
        """`JOBS` is root's: nobody else can put anything there, or in its place."""

    def __iter__(self) -> Iterator[str]:
        """Yield each entry, in no order: a page's name below the directory, or "" for another."""
        yield from self._entries("")
        for subdirectory in self._subdirectories:  # `JOBS` adds those within while it is listed.
            yield from self._entries(subdirectory)

    def _entries(self, subdirectory: str) -> Iterator[str]:
        prefix = f"{subdirectory}/" if subdirectory else ""
        reason = "unopened" if subdirectory else "open"
        try:
            listed = os.open(
                self._path / subdirectory,
                os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
            )
        except FileNotFoundError:
            return
        except OSError:
            self.refused[reason] += 1
            return
        try:
            if subdirectory == JOBS:
                self._of_root = owned_by_root(os.fstat(listed))
            with os.scandir(listed) as found:
                for entry in found:
                    self.entries += 1
                    yield self._page_name(entry, prefix)
        except OSError:
            self.refused[reason] += 1
        finally:
            os.close(listed)

    def _page_name(self, entry: os.DirEntry[str], prefix: str) -> str:
        if entry.name.startswith("."):
            return ""  # being created
        if _NAME.match(entry.name):
            return prefix + entry.name
        above = not prefix or (self._of_root and prefix == f"{JOBS}/")
        if above and SUBDIRECTORY.match(entry.name) and entry.is_dir(follow_symlinks=False):
            # Nobody's directories take the places of root's.
            most = MAX_SUBDIRECTORIES * (2 if prefix or entry.name == JOBS else 1)
            if len(self._subdirectories) < most:
                self._subdirectories.append(prefix + entry.name)
            else:
                self.refused["too_many"] += 1
        else:
            self.refused["name"] += 1
        return ""
