"""Keeps the overrides in ``$STATE/operator.json``: stored before an operator is told "done".

Not in the timeline's database: that is written later, by another thread, and may be set aside.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import structlog

from fabricd.operate.overrides import ActiveOverrides
from telemetry.service import durable

VERSION = 1
KEY = "overrides"
OLD_KEY = "wishes"
"""The former name of `KEY`, which earlier versions alone know. It is written beside `KEY` for one
release, so that a drain survives a downgrade. A file that has only this key is read as ever."""
MAX_BYTES = 16 * 1024 * 1024
"""Of the file; a longer one is none of ours."""


class OverrideStore:
    """The file of the overrides."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = structlog.get_logger()

    def load(self, overrides: ActiveOverrides) -> list[str]:
        """Read the file, if there is one, into ``overrides``; returns what was not usable.

        A file that makes no sense is renamed aside: nothing an operator wrote is overwritten.
        """
        try:
            data = durable.read(self.path, MAX_BYTES)
            if data is None:
                return []
            document = json.loads(data)
            if not isinstance(document, dict) or document.get("version") != VERSION:
                raise ValueError("not a file of this version")
        except OSError as error:
            return [f"{self.path}: {error.strerror}"]
        except (ValueError, RecursionError) as error:
            aside = self.path.with_name(f"{self.path.name}.unusable-{int(time.time())}")
            with contextlib.suppress(OSError):
                self.path.rename(aside)
            return [f"{self.path}: {error}; kept as {aside.name}"]
        return overrides.restore(
            document.get(KEY, document.get(OLD_KEY)),
            wall_ns=time.time_ns(),
            now=time.monotonic_ns(),
        )

    def save(self, overrides: ActiveOverrides) -> None:
        """Store all overrides, durably.

        Raises:
            OSError: not stored; the file says what it said before.
        """
        saved = overrides.save()
        document = {"version": VERSION, KEY: saved, OLD_KEY: saved}
        durable.replace_text(self.path, json.dumps(document, indent=1) + "\n")
