"""When did the kernel lose a carrier? ``python -m bench.detect.live_counter NETDEV...``.

The ground truth of a pulled cable says when it was asked for; while other links flap, the kernel
takes its time (RTNL is one lock for all). This reads carrier_down_count of the devices of its own
network namespace every 100 µs, under SCHED_FIFO, and prints ``[ns, netdev]`` for each change.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path

POLL_S = 100e-6
PRIORITY = 46
PR_SET_PDEATHSIG, PR_SET_TIMERSLACK, SIGKILL = 1, 29, 9


def main() -> None:
    """The process; ends when its parent does."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    base = Path("/sys/class/net")
    files = {
        name: os.open(base / name / "carrier_down_count", os.O_RDONLY) for name in sys.argv[1:]
    }
    known = {name: os.pread(fd, 32, 0) for name, fd in files.items()}
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    while True:
        for name, fd in files.items():
            if (count := os.pread(fd, 32, 0)) != known[name]:
                known[name] = count
                print(json.dumps((time.monotonic_ns(), name)), flush=True)
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
