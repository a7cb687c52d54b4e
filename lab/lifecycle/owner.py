"""The process that owns a lab started from the command line: ``python -m lab.lifecycle.owner``.

``./run lab up`` returns while this process stays: it holds the lab, restarts crashed services, and
takes everything down on SIGTERM. Reads one JSON object on standard input, writes one line of JSON
on standard output (``{"ok": true}`` or ``{"ok": false, "error": …}``) when the lab is up.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from pyroute2.netlink.exceptions import NetlinkError

from lab.cluster import Cluster
from lab.lifecycle.registry import LabError
from lab.topology import Topology, TopologyError


def say(answer: dict[str, object]) -> None:
    """One line to the parent, then its pipe is let go."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)


def main() -> None:
    """The process."""
    asked = json.loads(sys.stdin.readline())
    try:
        with Cluster(topology=Topology(**asked["topology"])) as cluster:
            if asked["daemons"]:
                cluster.start_daemons()
            say({"ok": True})
            log = os.open(cluster.dir.root / "owner.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 2)
            threading.Event().wait()
    except (LabError, TopologyError, NetlinkError, OSError) as error:
        say({"ok": False, "error": str(error)})
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
