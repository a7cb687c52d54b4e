"""Failed beside another test: how does it go by itself?

``python -m lab.again FAILED.json`` runs the tests again that a pytest run left there (see
``tests/conftest.py``, ``FABRIC_FAILED``), one after the other and with nothing beside them. It
excuses nothing: the tier has failed whatever comes of it. It tells what is always wrong from what
is wrong now and then, or beside others only, which is where to look first.

Only where few failed. What came of it is said on the terminal and kept in build/log/again.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

MOST = 2
LOG = Path("build/log/again.jsonl")


def worth_it(failed: Sequence[str], errors: Sequence[str]) -> bool:
    """Whether a second run tells something: few failed, and no report in a log says why."""
    return 0 < len(failed) <= MOST and not errors


def main(argv: Sequence[str] | None = None) -> int:
    """Always 1: something has failed."""
    parser = argparse.ArgumentParser(prog="python -m lab.again", description=__doc__)
    parser.add_argument("failed", type=Path, help="what FABRIC_FAILED named in the first run")
    path = parser.parse_args(argv).failed
    try:
        first = json.loads(path.read_text())
    except (OSError, ValueError):
        return 1  # the first run ended before it could say what failed
    if not worth_it(first["failed"], first["errors"]):
        return 1
    environment = {k: v for k, v in os.environ.items() if k != "FABRIC_FAILED"}
    print(f"[run] failed beside others, again by itself: {' '.join(first['failed'])}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *first["failed"]], check=False, env=environment
    )
    row = {"at": int(time.time()), "tests": first["failed"], "passed": done.returncode == 0}
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with LOG.open("a") as file:
        file.write(json.dumps(row) + "\n")
    said = "passed by itself" if row["passed"] else "failed by itself, too"
    print(f"[run] {said} (kept in {LOG}): {' '.join(first['failed'])}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
