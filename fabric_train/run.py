"""``fabric-run``: launch a training script whose ranks survive the loss of a process."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fabric_train.agent import Agent, python
from fabric_train.coordinator import Coordinator

EXAMPLE = """example:
  fabric-run --standalone --nproc-per-node 4 --spares 1 train.py --epochs 3
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status: 0 the job ended well, 1 it did not, 2 usage."""
    args = _parser().parse_args(argv)
    if not Path(args.script).is_file():
        sys.stderr.write(f"fabric-run: {args.script}: no such file\n")
        return 2
    return asyncio.run(_run(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "fabric-run", description=__doc__, epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--standalone", action="store_true", required=True,
        help="all ranks and spares on this machine; needs neither daemon nor broker",
    )  # fmt: skip
    parser.add_argument("--job", default="job", help="name of the job (default: %(default)s)")
    parser.add_argument(
        "--nproc-per-node", type=int, default=1, metavar="N", help="ranks (default: %(default)s)"
    )
    parser.add_argument(
        "--spares", type=int, default=1, metavar="N",
        help="warm processes that wait to take over a rank (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--records", type=Path, help="write the recoveries to this JSON file")
    parser.add_argument("script", help="the training script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _report(line: str) -> None:
    sys.stderr.write(f"fabric-run: {line}\n")


async def _run(args: argparse.Namespace) -> int:
    try:
        coordinator = Coordinator(args.nproc_per_node, args.spares)
    except ValueError as error:
        sys.stderr.write(f"fabric-run: {error}\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="fabric-run-") as directory:
        agent = Agent(
            coordinator, args.job, args.nproc_per_node, python(args.script, args.args),
            Path(directory), _report,
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, agent.stop, f"ended by {number.name}")
        failure = await agent.run()
    records = [asdict(record) for record in coordinator.records]
    if args.records:
        args.records.write_text(json.dumps(records, indent=1) + "\n")
    if failure:
        sys.stderr.write(f"fabric-run: job {args.job} failed: {failure}\n")
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
