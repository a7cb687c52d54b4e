"""Failed beside another test: how does it go by itself?

``python -m lab.again FAILED.json`` runs the tests again that a pytest run left there (see
``tests/conftest.py``, ``FABRIC_FAILED``), one after the other and with nothing beside them. A lab
test injects faults into real processes with real deadlines; two of them on two cores of a machine
that others use too now and then wait for each other. What fails by itself as well has failed.

Never run again: a sanitizer's report or a traceback in a log (those are errors, not failures), and
more than ``MOST`` failures, for then it is not the machine. Every second run is said on the
terminal and kept in build/log/again.jsonl, so that what is only *often* wrong can be found.
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
    """Whether a second run may tell the machine's doing from ours."""
    return 0 < len(failed) <= MOST and not errors


def main(argv: Sequence[str] | None = None) -> int:
    """0: all that failed passed by itself; 1: it did not, or there is nothing to be run again."""
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
    return 0 if row["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
