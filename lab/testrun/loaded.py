"""Runs a command some times over while other programs keep cores busy.

``python -m lab.testrun.loaded [--cores N] [--times N] -- COMMAND…``

The load is `stress-ng` at the priority of the command itself. It ends with the last run, and at the
latest after `--most` seconds. Exit status: that of the first run that failed, else 0.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

MOST_S = 4 * 3600


@contextmanager
def load(cores: int, most_s: int) -> Iterator[None]:
    """Keep so many cores busy."""
    command = ["stress-ng", "--quiet", "--cpu", str(cores), "--timeout", str(most_s)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as stressors:
        try:
            yield
        finally:
            stressors.terminate()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; a line for each run."""
    parser = argparse.ArgumentParser(prog="python -m lab.testrun.loaded")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--most", type=int, default=MOST_S, help="seconds of load")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args(argv)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("no command")
    with load(args.cores, args.most):
        for number in range(1, args.times + 1):
            began = time.monotonic()
            status = subprocess.run(command, check=False).returncode
            took = time.monotonic() - began
            print(f"loaded, {number} of {args.times}: status {status}, {took:.0f} s", flush=True)
            if status != 0:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
