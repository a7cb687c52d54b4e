"""What the daemon keeps on disk, read with the daemon's own rights: for support bundles.

Root makes the bundle, and the directory is the daemon's user's: a link there could lead root to any
file, a FIFO could keep root waiting for ever. So a child process reads, as the directory's owner,
regular files only, and is ended when it takes too long: ``python -m fabricd.support.state
DIRECTORY SINCE_NS QUERY`` prints the JSON of `State`.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fabricd.process import bounded_run
from fabricd.support import facts
from telemetry.timeline import Timeline, TimelineError

FILES = ("mode", "operator.json")
DATABASE = "timeline.db"
MAX_ROWS = 20_000
LIMIT_S = 60.0
MAX_PRINTED = 128 * 1024 * 1024


@dataclass(slots=True)
class State:
    """What was read."""

    files: dict[str, str] = field(default_factory=dict)
    """Name → text, or why there is none in brackets."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Of the timeline, the newest `MAX_ROWS`."""
    flap_totals: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """What could not be had → why."""


def read(directory: Path, since_ns: int, query: Mapping[str, Any] | None = None) -> State:
    """Read with the rights of this process; never through a link, never waiting for a FIFO.

    Args:
        directory: the daemon's state.
        since_ns: where the excerpt of the timeline begins, CLOCK_REALTIME.
        query: more arguments of `Timeline.query`, to choose rows by.
    """
    found = State()
    for name in FILES:
        found.files[name] = facts.read(directory / name, follow=False)
    try:
        for suffix in ("", "-wal", "-shm"):
            _regular_or_none(directory / (DATABASE + suffix))
        with Timeline(directory / DATABASE, read_only=True) as timeline:
            wanted = {"limit": MAX_ROWS, **(query or {})}
            events = timeline.query(since_ns=since_ns, **wanted)
            found.rows = [event.to_dict() for event in events]
            found.flap_totals = timeline.flap_totals()
    except (TimelineError, OSError) as error:
        found.missing["timeline.jsonl"] = str(error)
    return found


def read_as_owner(
    directory: Path,
    since_ns: int,
    query: Mapping[str, Any] | None = None,
    *,
    limit_s: float = LIMIT_S,
) -> State:
    """Read with the rights of the directory's owner, where this process has more.

    Args:
        directory: as of `read`.
        since_ns: as of `read`.
        query: as of `read`.
        limit_s: seconds; a reader that takes longer is ended.
    """
    try:
        status = directory.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(0, "not a directory", str(directory))
        user: dict[str, Any] = {}
        if os.geteuid() == 0 and status.st_uid != 0:
            user = {"user": status.st_uid, "group": status.st_gid, "extra_groups": []}
        # Neither -m's own directory (-P) nor the caller's environment choose the code that runs.
        packages = str(Path(__file__).parents[2])
        # The directory's owner may do with that child what it likes: also have it print for ever.
        done = bounded_run.run(
            [sys.executable, "-P", "-m", "fabricd.support.state", str(directory), str(since_ns),
             json.dumps(query or {})],
            limit_s, MAX_PRINTED, cwd="/",
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": packages}, **user,
        )  # fmt: skip
        if done.status == 0 and not done.problem:
            return State(**json.loads(done.output))
        why = f"not read: {done.problem or done.errors[-500:]}"
    except (OSError, ValueError, TypeError) as error:
        why = f"not read: {error}"
    names = (*(f"state/{name}" for name in FILES), "timeline.jsonl")
    return State(missing=dict.fromkeys(names, why))


def _regular_or_none(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "not a regular file", str(path))


def main() -> int:
    """The child: prints what it reads."""
    directory, since_ns = Path(sys.argv[1]), int(sys.argv[2])
    json.dump(asdict(read(directory, since_ns, json.loads(sys.argv[3]))), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
