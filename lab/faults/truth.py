"""Ground truth: every injected fault, when it began and ended, as JSON lines.

``t_ns`` is CLOCK_MONOTONIC read right before the call that made the change; ``took_ns`` is how long
that call took, so the change took effect in [t_ns, t_ns + took_ns].
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Truth:
    """An append-only file that several processes may write at once.

    A row is one ``write(2)`` with O_APPEND, which does not interleave on a local file.
    """

    path: Path

    def write(self, t_ns: int, fault: str, phase: str, target: str, **more: object) -> None:
        """Append one row."""
        row: Row = {"t_ns": t_ns, "fault": fault, "phase": phase, "target": target, **more}
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, json.dumps(row).encode() + b"\n")
        finally:
            os.close(fd)

    def rows(self) -> list[Row]:
        """All rows so far, in the order written."""
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines() if line]


def now_ns() -> int:
    """CLOCK_MONOTONIC."""
    return time.monotonic_ns()
