#!/opt/fabricd/bin/python3
"""Runs a command and waits until the steer page has the weights asked.

Prints the seconds that the command took, and those from its start until the page had them.

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
began = time.monotonic()
if sys.argv[5:]:
    subprocess.run(sys.argv[5:], check=True)
ran = time.monotonic()
while True:
    try:
        found = weights(netdev, remote)
    except PageError:
        continue  # it is being written
    if found == wanted:
        break
    if time.monotonic() - ran > PATIENCE_S:
        sys.exit(f"weights of IP and RDMA are {found}, not {wanted}")
    time.sleep(0.01)
print(ran - began, time.monotonic() - began)
