"""``fabric-run``: launch a training script whose ranks survive the loss of a process."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fabric_train.agent.interrupts import kept_from_ranks
from fabric_train.agent.outputs import OptionError, Outputs, add_options, outputs_of
from fabric_train.agent.processes import python
from fabric_train.agent.progress_line import ELSE_S, TERMINAL_S, ProgressLine
from fabric_train.agent.run_directory import run_directory
from fabric_train.agent.standalone import Agent
from fabric_train.frameworks.scripts import RefusedScriptError, transparent_python
from fabric_train.groups import backend
from fabric_train.host.agent import HostAgent, Options
from fabric_train.host.job_key import VARIABLE as KEY_FILE
from fabric_train.host.job_key import KeyFileError, read_key
from fabric_train.messages import addresses
from fabric_train.messages.plain_text import rewrite, say
from fabric_train.rules import limits
from fabric_train.rules.coordinator import Coordinator
from fabric_train.rules.protection import Protection

EXAMPLE = """examples:
  fabric-run --standalone --nproc-per-node 4 --spares 1 train.py --epochs 3
  fabric-run --job gpt --nodes 4 --spares 1 --nproc-per-node 8 train.py   # on each of 5 hosts
"""
RUN_DIR = "/run/fabricd"
_JOB = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\Z")
# Slurm, indexed jobs of Kubernetes, and what others agree on.
_NODE_RANKS = ("SLURM_NODEID", "JOB_COMPLETION_INDEX", "NODE_RANK", "GROUP_RANK")


class UsageError(Exception):
    """The command line cannot be followed. The text says what is wrong with it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status.

    0: the job ended well. 2: usage. Else that of the script, if that ended the job, or 1.
    """
    args = _parser().parse_args(argv)
    try:
        if not args.standalone and args.nodes is None:
            raise UsageError("either --standalone, or --nodes for a job of several hosts")
        if args.early_spares and not args.standalone:
            raise UsageError("--early-spares is for --standalone: hosts keep late ones (--standby)")
        if not Path(args.script).is_file():
            raise UsageError(f"{args.script}: no such file")
        limits.check_order(os.environ)
        os.environ.update(backend.environment(args.backend, os.environ, standalone=args.standalone))
        with run_directory() as directory:
            outputs = outputs_of(args, _report)
            agent = (_standalone if args.standalone else _host)(args, directory, outputs)
            agent.on_protected = _Announcer(args.protection).announce
            failure = asyncio.run(_run(agent, _progress_s(args)))
    except (
        UsageError,
        OptionError,
        KeyFileError,
        backend.BackendError,
        limits.LimitError,
    ) as error:
        say(f"fabric-run: {error}")
        return 2
    if args.records:
        records = [asdict(record) for record in agent.records]
        args.records.write_text(json.dumps(records, indent=1) + "\n")
    if failure:
        say(f"fabric-run: job {args.job} failed: {failure}")
    return agent.exit_status if failure else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "fabric-run", description=__doc__, epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    # fmt: off
    add = parser.add_argument
    add("--standalone", action="store_true",
        help="all ranks and spares on this machine; needs neither daemon nor broker")
    add("--job", default="job", help="name of the job (default: %(default)s)")
    add("--nproc-per-node", type=int, default=1, metavar="N",
        help="ranks of each host (default: %(default)s)")
    add("--spares", type=int, metavar="N",
        help="standalone: warm processes that wait to take over a rank (default: 1); else hosts "
        "that do, besides --nodes (default: 0)")
    add("--early-spares", type=_ranks, default=(), metavar="RANKS",
        help="standalone, for a job with join(late=True): one more warm process for each of these "
        "ranks, e.g. 0,2, that builds its model for it beforehand")
    add("--backend", choices=backend.BACKENDS,
        help=f"collectives between ranks (default: {backend.VARIABLE}, or {backend.BACKENDS[0]})")
    add("--transparent", action="store_true",
        help="take over the loop of transformers' or Lightning's Trainer; the script says nothing")
    add("--records", type=Path, help="write the recoveries to this JSON file")
    add("--protection", type=Path, metavar="FILE",
        help="write what is protected by whom, and what is not, to this JSON file")
    add("--progress", action="store_true",
        help="say how far the job is: each second on a terminal, else every 30 s")
    add("--progress-every", type=_seconds, metavar="SECONDS", help="the same, so often")
    add_options(parser)
    hosts = parser.add_argument_group("a job of several hosts", "fabric-run is started on each")
    add = hosts.add_argument
    add("--nodes", type=int, metavar="N", help="hosts that hold ranks")
    add("--standby", type=int, default=1, metavar="N",
        help="warm processes of each host for ranks that crash there (default: %(default)s)")
    add("--node-rank", type=int, metavar="N",
        help=f"place of this host in the job (default: the first of {', '.join(_NODE_RANKS)} "
        "that is set, else fabric-compute's choice)")
    where = hosts.add_mutually_exclusive_group()
    where.add_argument("--interface", help="network interface over which the hosts talk")
    where.add_argument("--address", help="IP address of this host in the job")
    add("--key-file", default=os.environ.get(KEY_FILE), metavar="FILE",
        help="the job's key, secret (mode 0600) and the same on all of its hosts; - is standard "
        f"input (default: {KEY_FILE})")
    add("--daemon", type=Path, default=Path(os.environ.get("FABRIC_RUN_DIR", RUN_DIR)),
        metavar="PATH", help="run directory of this host's fabricd (default: %(default)s)")
    # fmt: on
    parser.add_argument("script", help="the training script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _report(line: str) -> None:
    say(f"fabric-run: {line}")


class _Announcer:
    """Tells people and a file what is protected, when the job begins."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def announce(self, protection: Protection) -> None:
        """Say and write ``protection``; a file that cannot be written is said, too."""
        for line in protection.lines():
            _report(line)
        if self._file is None:
            return
        try:
            self._file.write_bytes(protection.encode() + b"\n")
        except OSError as error:  # no reason to end the job
            _report(f"--protection {self._file}: {error.strerror or error}")


def _standalone(args: argparse.Namespace, directory: Path, outputs: Outputs | None) -> Agent:
    try:
        spares = 1 if args.spares is None else args.spares
        coordinator = Coordinator(args.nproc_per_node, spares, early=args.early_spares)
    except ValueError as error:
        raise UsageError(str(error)) from None
    command = _command(args)
    return Agent(coordinator, args.job, args.nproc_per_node, command, directory, _report, outputs)


def _host(args: argparse.Namespace, directory: Path, outputs: Outputs | None) -> HostAgent:
    return HostAgent(_host_options(args), directory, _report, outputs)


def _command(args: argparse.Namespace) -> list[str]:
    if not args.transparent:
        return python(args.script, args.args)
    try:
        return transparent_python(args.script, args.args)
    except (RefusedScriptError, OSError) as error:
        raise UsageError(str(error)) from None


def _host_options(args: argparse.Namespace) -> Options:
    spares = args.spares or 0
    if args.nodes < 1 or args.nproc_per_node < 1 or spares < 0 or args.standby < 0:
        raise UsageError(
            f"a job needs at least one host and one rank: --nodes {args.nodes}, --nproc-per-node "
            f"{args.nproc_per_node}, --spares {spares}, --standby {args.standby}"
        )
    if _JOB.match(args.job) is None:
        raise UsageError(f"--job {args.job!r:.80}: letters, digits, and ._- between them")
    if args.node_rank is not None and args.node_rank < 0:
        raise UsageError(f"--node-rank {args.node_rank}: places count from 0")
    return Options(
        args.job, args.nodes, spares, args.nproc_per_node, args.standby, _address(args),
        args.daemon, _command(args), _node_rank(args.node_rank),
        read_key(args.job, args.key_file) if args.key_file else None,
    )  # fmt: skip


def _address(args: argparse.Namespace) -> str:
    try:
        if args.address is not None:
            return addresses.split(addresses.join(args.address, 1))[0]
        if args.interface is not None:
            return addresses.of_interface(args.interface)
        return addresses.of_default_route()
    except addresses.AddressError as error:
        raise UsageError(str(error)) from None


def _node_rank(given: int | None) -> int | None:
    if given is not None:
        return given
    for name in _NODE_RANKS:
        text = os.environ.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return None


async def _run(agent: Agent | HostAgent, progress_s: float | None) -> str | None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, agent.stop, "ended by SIGTERM")

    def interrupt() -> None:
        loop.call_soon_threadsafe(agent.stop, "ended by SIGINT")

    shows = None if progress_s is None else asyncio.create_task(_show_progress(agent, progress_s))
    with kept_from_ranks(interrupt):
        try:
            return await agent.run()
        finally:
            if shows is not None:
                shows.cancel()


async def _show_progress(agent: Agent | HostAgent, every_s: float) -> None:
    line, rewrites = ProgressLine(), sys.stderr.isatty()
    while True:
        await asyncio.sleep(every_s)
        text = line.text(*agent.progress(), agent.records, time.monotonic())
        if rewrites:
            rewrite(text)
        else:
            _report(text)


def _progress_s(args: argparse.Namespace) -> float | None:
    """Between two lines on how far the job is; None: there are none."""
    if args.progress_every is not None or not args.progress:
        every: float | None = args.progress_every
        return every
    return TERMINAL_S if sys.stderr.isatty() else ELSE_S


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError(text)
    return value


if __name__ == "__main__":
    sys.exit(main())
