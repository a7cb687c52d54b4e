"""``python -m lab.demo``: plays the demo, shows it live, writes the report."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections import deque
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich import box
from rich.console import Console
from rich.live import Live as RichLive
from rich.table import Table
from rich.text import Text

from lab.cluster import Cluster
from lab.demo import rdma, report, verdict
from lab.demo.analysis import Analysis, analyse
from lab.demo.live import Live, LogLine
from lab.demo.record import Recording
from lab.demo.run import Demo, DemoError, first_error, make_live
from lab.demo.story import RATE, SECONDS, chapters, topology
from lab.demo.training import act as training
from lab.demo.training import report as training_report
from lab.demo.training import view as training_view
from lab.demo.view import LOG_STYLE, draw, rate
from lab.lifecycle.registry import LabError
from lab.topology import TopologyError, parse_rate

WIDE = 146
"""Columns from which a fault's row fits on one line."""
OUT = Path(__file__).resolve().parents[2] / "out" / "demo"
EPILOG = """\
exit status:
  0    the job ended by itself with 0 errors and 0 corrupt bytes; every fault was detected, steered
       and on the timeline in time; every rail carried its share again in time; the job ran on the
       survivors, and at full speed after each fault. Of a speed, less is demanded the more of the
       CPU other processes took; one that is not judged for that is shown in parentheses.
       With --no-failover: the job died of a transport error, as a plain transport does.
  1    not so; each thing that is wrong is printed
  2    usage, or it could not be set up
  130  Ctrl-C (143: SIGTERM); everything is removed

examples:
  sudo ./run demo
  sudo ./run demo --no-failover
  sudo ./run demo --plain --seconds 15
  sudo ./run demo rdma    the first act's story over RDMA, in a virtual machine with soft-RoCE
"""


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, play, report; the exit status."""
    parser = argparse.ArgumentParser(
        prog="./run demo",
        description="Two acts: five faults under an all-reduce through the plugin; then a NIC, a "
        "rank and a host are lost under a training job.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--no-failover",
        action="store_true",
        help="the same faults, a plain single-path transport and no daemons: the job dies",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="length of the job; faults that do not fit are left out (default %(default)g)",
    )
    parser.add_argument("--rate", default=RATE, help="speed of each link (default %(default)s)")
    parser.add_argument(
        "--act", choices=("1", "2", "both"), default="both",
        help="1: NICs fail under an all-reduce; 2: NIC, rank and host fail under a training job",
    )  # fmt: skip
    parser.add_argument("--plain", action="store_true", help="a log of lines instead of the view")
    parser.add_argument("--out", type=Path, default=OUT, help="where reports go (out/demo)")
    options = parser.parse_args(arguments)
    try:
        story = chapters(options.seconds)
        rate_bps = parse_rate(options.rate)
        if not rate_bps:
            parser.error("the demo needs shaped links: on unshaped ones the CPU is the bottleneck")
        lab = topology(f"demo-{os.getpid()}", rate_bps)
    except (ValueError, TopologyError) as error:
        parser.error(str(error))
    rail_bps = rate_bps / 8
    live = make_live(lab, story, options.seconds, failover=not options.no_failover)
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, width=WIDE)
    began = time.monotonic()
    if options.act == "2":
        return second_act(console, options.out, rate_bps, options, began)
    try:
        with Cluster(topology=lab) as cluster:
            recording = _play(cluster, live, console, plain=options.plain, rail_bps=rail_bps)
    except (LabError, DemoError, OSError) as error:
        console.print(f"[bold red]the demo could not run:[/] {error}", markup=True)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted; everything is removed")
        return 128 + signal.SIGINT
    if options.no_failover:
        status = _after_death(console, recording, options.out)
    else:
        status = _after_run(console, recording, options.out, rail_bps)
    if options.act == "both":
        return max(status, second_act(console, options.out, rate_bps, options, began))
    console.print(f"[bright_black]{time.monotonic() - began:.0f} s in all[/]")
    return status


def second_act(
    console: Console, out: Path, rate_bps: int, options: argparse.Namespace, began: float
) -> int:
    """Play it, print its table, write its report beside the first act's; the exit status."""
    console.print("[bold]second act: a host dies, the job does not[/]", markup=True)
    try:
        with Cluster(topology=training.topology(f"demo-{os.getpid()}", rate_bps)) as cluster:
            act = training.Act(cluster, lambda _: None, failover=not options.no_failover)
            _play_training(act, console, plain=options.plain)
            status = _after_training(act, console, out)
    except (LabError, DemoError, OSError) as error:
        console.print(f"the second act could not run: {error}", style="bold red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted; everything is removed")
        return 128 + signal.SIGINT
    console.print(f"[bright_black]{time.monotonic() - began:.0f} s in all[/]")
    return status


def _play_training(act: training.Act, console: Console, *, plain: bool) -> None:
    if plain or not console.is_terminal:
        act.show = training_view.LinePrinter(console).show
        act.play()
        return
    with RichLive(console=console, screen=True, auto_refresh=False) as screen:

        def show(act: training.Act) -> None:
            picture = training_view.draw(act, console.width, console.height)
            screen.update(picture, refresh=True)

        act.show = show
        act.play()


def _after_training(act: training.Act, console: Console, out: Path) -> int:
    if not act.failover:
        died = act.died_of
        text = f"failover off: the job died {died}" if died else "the job did not die"
        console.print(text, style="bold red", markup=False)
        return 0 if died else 1
    console.print(training_report.table(act))
    failures = training_report.failures(act)
    for text in failures:
        console.print(f"FAILED: {text}", style="bold red", markup=False)
    if not failures:
        console.print(training_report.sentence(act), style="green", markup=False)
        console.print(act.ledger, style="green", markup=False)
    path = training_report.write(out / "latest", act, _version())
    console.print(f"report: {path}", soft_wrap=True)
    return 1 if failures else 0


def _play(
    cluster: Cluster, live: Live, console: Console, *, plain: bool, rail_bps: float
) -> Recording:
    failover = live.failover
    if plain or not console.is_terminal:
        printer = LinePrinter(console, live)
        try:
            return Demo(cluster, live, printer.show, failover).play()
        finally:
            printer.finish()
    with RichLive(console=console, screen=True, auto_refresh=False) as screen:
        last = 0.0

        def show() -> None:
            nonlocal last
            if time.monotonic() - last >= 0.25:
                last = time.monotonic()
                screen.update(draw(live, console.width, console.height, rail_bps), refresh=True)

        return Demo(cluster, live, show, failover).play()


class LinePrinter:
    """The view without a terminal: each line of the log, and the throughput every 5 s.

    Lines that may still be counted on hold up those after them, for a second or a burst of flaps.
    """

    def __init__(self, console: Console, live: Live) -> None:
        self._console = console
        self._live = live
        self._taken = 0
        self._waiting: deque[LogLine] = deque()
        self._next_s = 0.0

    def show(self) -> None:
        """Print what is new and will not change any more."""
        live = self._live
        new = live.lines_ever - self._taken
        self._taken = live.lines_ever
        if new:
            self._waiting += list(live.log)[-new:]
        if live.start_ns and live.now_s >= self._next_s and live.total:
            self._next_s += 5.0
            recent = live.total[-10:]
            text = f"job at {rate(sum(recent) / len(recent))}"
            self._waiting.append(LogLine(live.now_s, "rate", text))
        while self._waiting and self._waiting[0].settled(live.now_s):
            self._print(self._waiting.popleft())

    def finish(self) -> None:
        """Print what is left."""
        while self._waiting:
            self._print(self._waiting.popleft())

    def _print(self, line: LogLine) -> None:
        style = LOG_STYLE.get(line.style, "")
        self._console.print(f"{line.at_s:7.2f} s  {line.text}", style=style, markup=False)


def _after_run(console: Console, recording: Recording, out: Path, rail_bps: float) -> int:
    analysis = analyse(recording)
    failures = verdict.failures(analysis)
    console.print(_timeline_table(recording))
    for table in _fault_tables(recording, analysis, console.width):
        console.print(table)
    for note in report.notes(analysis):
        console.print(note)
    console.print(report.machine(recording, analysis, rail_bps))
    good = analysis.clean and not analysis.errors and not analysis.corrupt_bytes
    console.print(report.errors_line(analysis), style="bold green" if good else "bold red")
    if failures:
        for text in failures:
            console.print(f"FAILED: {text}", style="bold red", markup=False)
    else:
        console.print(verdict.sentence(analysis), style="green")
    for end in recording.ends:
        if not end.clean:
            console.print(f"  {end.host}: {report.how_it_ended(end)}", markup=False)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(recording.start_wall_ns / 1e9))
    path = report.write(out / stamp, recording, analysis, rail_bps=rail_bps, version=_version())
    latest = out / "latest"
    latest.unlink(missing_ok=True)
    latest.symlink_to(stamp)
    console.print(f"report: {path}", soft_wrap=True)
    return 1 if failures else 0


def _after_death(console: Console, recording: Recording, out: Path) -> int:
    """The before and after; 0 when the job died of a transport error after the first fault."""
    found = first_error(recording.ends)
    fault_ns = min((span.start_ns for span in recording.spans), default=None)
    died = found is not None and found[0].status == 1
    if found is None or fault_ns is None or not died:
        ends = ", ".join(f"{end.host}: {end.status}" for end in recording.ends)
        console.print(
            f"the job did not die of a transport error (exit statuses {ends})", style="red"
        )
        return 1
    end, error = found
    t_ns = int(error.get("t_ns", fault_ns))
    seconds = (t_ns - fault_ns) / 1e9
    span = recording.spans[0]
    where = ", ".join(f"{host} {rail}" for host, rail in span.rails)
    console.print(
        f"failover off: {span.title} ({where}), and {seconds:.1f} s later the job is dead:"
        f" {end.host} reports {error.get('text') or error.get('code')}"
        f" in {error.get('where', '?')} (exit status {end.status})",
        style="bold red",
    )
    console.print(_with_failover(out), style="bold")
    return 0


def _with_failover(out: Path) -> str:
    """What the last run with failover showed, from its own result."""
    try:
        result = json.loads((out / "latest" / "result.json").read_text())
    except (OSError, ValueError):
        return "failover on: not played yet; sudo ./run demo"
    worst = max((fault["dip_s"] for fault in result["faults"]), default=0.0)
    return (
        f"failover on (last run): {len(result['faults'])} faults, {result['errors']} errors,"
        f" {result['corrupt_bytes']} corrupt bytes, longest dip {worst:.1f} s"
    )


def _timeline_table(recording: Recording) -> Table:
    title = "flap timeline (from the daemons' databases)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("t", justify="right")
    for name in ("host", "link", "kind", "what"):
        table.add_column(name)
    for row in report.timeline(recording, report.merged(recording.events)):
        table.add_row(row["at"], row["host"], row["link"], row["kind"], row["text"])
    return table


COLUMNS = {
    "title": "fault",
    "where": "where",
    "injected": "injected",
    "detected": "detected",
    "steered": "steered",
    "dip": "dip",
    "carried": "carried",
    "rejoined": "rail\nback",
    "back": "full\nspeed",
    "after": "after",
    "resent": "resent",
    "flaps": "flaps",
}
"""Fields of a row and their heads; the first three say which fault, the others what it cost."""


def _fault_tables(recording: Recording, analysis: Analysis, width: int) -> list[Table]:
    """One row per fault; on a narrow terminal the figures are a table of their own."""
    names = list(COLUMNS)
    parts = [names] if width >= WIDE else [names[:3], names[3:]]
    rows = [report.row(recording, result) for result in analysis.results]
    tables = []
    for number, part in enumerate(parts):
        table = Table(
            title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
        )
        table.title = "what each fault cost" if number == 0 else None
        table.add_column("#")
        for name in part:
            left = name in ("title", "where")
            table.add_column(COLUMNS[name], justify="left" if left else "right", no_wrap=True)
        for index, row in enumerate(rows, 1):
            cells = [Text(getattr(row, n), "bold red" if n in row.bad else "") for n in part]
            table.add_row(str(index), *cells)
        tables.append(table)
    return tables


def _version() -> str:
    try:
        return version("fabricd")
    except PackageNotFoundError:
        return "?"


if __name__ == "__main__":
    sys.exit(rdma.main(sys.argv[2:]) if sys.argv[1:2] == ["rdma"] else main())
