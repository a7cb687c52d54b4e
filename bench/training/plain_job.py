"""Launches the ranks of a job without protection: ``plain_job.py DIRECTORY STEPS RANKS``.

All its processes are in one session, as those of fabric-run are: a kernel with autogroups gives
each session its share of the CPU, and torchrun makes one for each rank.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

_LOOP = Path(__file__).with_name("plain.py")


def main() -> int:
    """Run until all ranks have ended, or SIGTERM. Returns the exit status."""
    directory, steps, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    common = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks),
        "TORCHELASTIC_RESTART_COUNT": "0", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            environment = {**os.environ, **common, "RANK": str(rank)}
            command = [sys.executable, str(_LOOP), directory, steps, "0"]
            processes.append(subprocess.Popen(command, env=environment))
        return max(abs(process.wait()) for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


sys.exit(main())
