#!/opt/fabricd/bin/python3
"""Runs a command, then waits until the steer page has other weights; prints how long that took.

Arguments: netdev, remote address, weight of IP, weight of RDMA, and the command that is run first.
"""

import subprocess
import sys
import time
from pathlib import Path

from fabricd.steer.page import PageError, decode

PAGE = Path("/run/rdma-probes/steer")
PATIENCE_S = 200


def weights(netdev: str, remote: str) -> tuple[int, int]:
    """What IP and RDMA may carry to a remote address, as the plugin reads the page."""
    page = decode(PAGE.read_bytes())
    ip = rdma = 1000
    for entry in (*page.rails, *page.paths):
        if entry.netdev == netdev and entry.remote in ("", remote):
            ip = min(ip, entry.weight)
            rdma = min(rdma, entry.rdma.weight if entry.rdma else entry.weight)
    return ip, rdma


netdev, remote, wanted = sys.argv[1], sys.argv[2], (int(sys.argv[3]), int(sys.argv[4]))
if sys.argv[5:]:
    subprocess.run(sys.argv[5:], check=True)
began = time.monotonic()
while True:
    try:
        found = weights(netdev, remote)
    except PageError:
        continue  # it is being written
    if found == wanted:
        break
    if time.monotonic() - began > PATIENCE_S:
        sys.exit(f"weights of IP and RDMA are {found}, not {wanted}")
    time.sleep(0.01)
print(time.monotonic() - began)
