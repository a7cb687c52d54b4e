"""Launches torchft's lighthouse and its replica groups, and starts a group again that has ended.

It does so ``PAUSE_S`` later: the survivors would wait for a group that is about to join.

``replica_groups.py DIRECTORY STEPS HEARTBEAT_TIMEOUT_MS``, with the interpreter that has torchft.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

GROUPS = 4
PAUSE_S = 10.0
_LOOP = Path(__file__).with_name("replica.py")


def main() -> int:
    """Run until all groups have ended well, or SIGTERM. Returns the exit status."""
    directory, steps, heartbeat_ms = sys.argv[1:4]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    lighthouse = subprocess.Popen(
        [
            Path(sys.executable).with_name("torchft_lighthouse"), "--min_replicas", "2",
            "--bind", f"127.0.0.1:{port}", "--quorum_tick_ms", "100",
            "--join_timeout_ms", "10000", "--heartbeat_timeout_ms", heartbeat_ms,
        ],
    )  # fmt: skip
    environment = {**os.environ, "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}

    def start(group: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, _LOOP, directory, steps, str(group)], env=environment
        )

    groups = {group: start(group) for group in range(GROUPS)}
    due: dict[int, float] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        while groups:
            time.sleep(0.05)
            for group, process in list(groups.items()):
                if process.poll() == 0:
                    del groups[group]
                elif process.returncode is not None:
                    now = time.monotonic()
                    if now >= due.setdefault(group, now + PAUSE_S):
                        del due[group]
                        groups[group] = start(group)
    finally:
        for one in [*groups.values(), lighthouse]:
            one.kill()
            one.wait()
    return 0


sys.exit(main())
