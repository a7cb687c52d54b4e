"""``sudo .venv/bin/python -m lab.gpu [--protocol LL] [--seconds 30] [--out DIR]``.

Exit status: 0 all bits equal, 1 not, 2 this machine cannot run it (the reason is printed).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from lab.cluster import Cluster
from lab.gpu.machine import cannot
from lab.gpu.plan import PROTOCOLS
from lab.gpu.run import run_protocol
from lab.node import REPO


def main() -> int:
    """All protocols, a lab for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", action="append", choices=PROTOCOLS, help="default: all")
    parser.add_argument("--seconds", type=float, default=30.0, help="of faults per protocol")
    parser.add_argument("--out", type=Path, help="a new directory (default: build/gpu/<time>)")
    args = parser.parse_args()
    if cannot("lab.gpu"):
        return 2
    out = (args.out or REPO / "build" / "gpu" / time.strftime("%Y%m%d-%H%M%S")).resolve()
    ok = True
    for protocol in args.protocol or PROTOCOLS:
        with Cluster(name="gpu", hosts=2, rails=2, rate="2gbit") as lab:
            report = run_protocol(lab, out / protocol, protocol, args.seconds)
        ok = ok and report.ok
        print(
            f"{protocol:7} {'same bits' if report.ok else 'WRONG'}: "
            f"{report.verdict.compared} results of {report.rounds} rounds, "
            f"{report.flaps} flaps, {report.failovers} failovers"
        )
        for line in report.verdict.wrong:
            print(f"        {line}")
    print(f"kept in {out}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
