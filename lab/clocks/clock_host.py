"""``python -m lab.clocks.clock_host``: fabric-clock of a host, with a virtual clock under it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fabricd.clock.__main__ import configured, run
from fabricd.config.loader import load
from fabricd.probes.client import host_id
from lab.clocks.virtual_clock import Step, VirtualClocks
from telemetry.service import logs
from telemetry.service.systemd_notify import Notifier


def main() -> int:
    """The process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--origin-ns", type=int, required=True)
    parser.add_argument("--step", type=Step.parse, action="append", default=[])
    given = parser.parse_args()
    logs.setup()
    config = load(given.config, shared_peers=False)
    host = host_id(config.host.name)
    clocks = VirtualClocks(given.seed, host, given.origin_ns, given.step)
    run(configured(config, clocks=clocks), Notifier())
    return 0


if __name__ == "__main__":
    sys.exit(main())
