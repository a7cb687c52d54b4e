"""When did the steer page of each host change? ``python -m bench.detect.live_watch`` follows them.

A process of its own under SCHED_FIFO (below the prober, above everything that is measured), so that
what it sees is not late when both cores are busy. Every 200 µs it reads the header of each page; a
row is written for each generation that it has not seen. A row's time is right after the read, so a
change is dated up to 200 µs late and never early. A page is what plugins act upon: what is on it is
decided and published.

Reads one JSON object (host → page's path) from standard input, says ``ready``, ends with its input.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
import time
from collections.abc import Callable

from fabricd.steer import page

POLL_S = 200e-6
PRIORITY = 45
PR_SET_PDEATHSIG, PR_SET_TIMERSLACK, SIGKILL = 1, 29, 9
_HEAD = page.RAILS_AT


def follow(pages: dict[str, str], ended: Callable[[], bool]) -> None:
    """Print a row for each new generation of each page until ``ended``."""
    files = {host: os.open(path, os.O_RDONLY) for host, path in pages.items()}
    fields = page.offsets(page.HEADER)
    seq_at, generation_at = fields["seq"], fields["generation"]
    known = dict.fromkeys(files, b"")
    while not ended():
        for host, fd in files.items():
            head = os.pread(fd, _HEAD, 0)
            generation = head[generation_at : generation_at + 8]
            if generation == known[host] or head[seq_at] & 1:
                continue
            whole = os.pread(fd, page.PAGE_SIZE, 0)
            now = time.monotonic_ns()
            try:
                view = page.decode(whole)
            except page.PageError:
                continue  # Being written: the next round has it.
            known[host] = whole[generation_at : generation_at + 8]
            rails = [(r.netdev, r.state.name, r.weight) for r in view.rails]
            print(json.dumps((now, host, rails)), flush=True)
        time.sleep(POLL_S)


def main() -> None:
    """The process."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    pages = json.loads(sys.stdin.readline())
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    print("ready", flush=True)
    rounds = 0

    def ended() -> bool:
        nonlocal rounds
        rounds += 1
        return rounds % 100 == 0 and bool(select.select([sys.stdin], [], [], 0)[0])

    follow(pages, ended)


if __name__ == "__main__":
    main()
