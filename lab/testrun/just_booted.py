"""Runs a command on a machine that seems just booted.

``python -m lab.testrun.just_booted COMMAND…``

A time namespace (time_namespaces(7)) whose CLOCK_MONOTONIC and CLOCK_BOOTTIME begin near 0. Needs
root. CLOCK_REALTIME is that of the machine: there is no namespace for it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from lab.lifecycle import procs

CLOCKS = {"monotonic": time.CLOCK_MONOTONIC, "boottime": time.CLOCK_BOOTTIME}


def command(args: Sequence[str], uptime_s: int = 1) -> list[str]:
    """``args`` in a new time namespace, at whose start the clocks say ``uptime_s`` seconds.

    The namespace ends with the command, and the command with this process.
    """
    now = procs.clock_offsets_s()  # of this process's own namespace
    offsets = []
    for name, clock in CLOCKS.items():
        offset = now[name] + uptime_s - int(time.clock_gettime(clock))
        offsets += [f"--{name}", str(offset)]
    return ["unshare", "--time", "--kill-child", *offsets, "--", *args]


def main(argv: Sequence[str] | None = None) -> None:
    """Become the command."""
    parser = argparse.ArgumentParser(prog="python -m lab.testrun.just_booted")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args(argv).command
    if not args:
        parser.error("no command")
    if os.geteuid() != 0:
        sys.exit("needs root: a time namespace")
    wanted = command(args)
    os.execvp(wanted[0], wanted)


if __name__ == "__main__":
    main()
