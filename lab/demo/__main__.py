"""``python -m lab.demo``: plays the demo, shows it live, writes the report."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich import box
from rich.console import Console
from rich.live import Live as RichLive
from rich.table import Table

from lab.cluster import Cluster
from lab.demo import report
from lab.demo.analysis import Analysis, analyse
from lab.demo.live import Live
from lab.demo.record import Recording
from lab.demo.run import Demo, DemoError, first_error, make_live
from lab.demo.story import RATE, SECONDS, chapters, topology
from lab.demo.view import LOG_STYLE, draw
from lab.registry import LabError
from lab.topology import TopologyError, parse_rate

WIDE = 140
"""Columns from which the tables need no folding."""
OUT = Path(__file__).resolve().parents[2] / "out" / "demo"
EPILOG = """\
exit status: 0 the demo showed what it promises (with --no-failover: the job died of a transport
error, as a plain transport does); 1 it did not; 2 usage, or it could not be set up; 130 Ctrl-C.

examples:
  sudo ./run demo
  sudo ./run demo --no-failover
  sudo ./run demo --plain --seconds 15
"""


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, play, report; the exit status."""
    parser = argparse.ArgumentParser(
        prog="./run demo",
        description="4 hosts × 4 rails, a ring all-reduce through the plugin, five faults.",
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
    live = make_live(story, options.seconds, failover=not options.no_failover)
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, width=WIDE)
    began = time.monotonic()
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
    console.print(f"[bright_black]{time.monotonic() - began:.0f} s in all[/]")
    return status


def _play(
    cluster: Cluster, live: Live, console: Console, *, plain: bool, rail_bps: float
) -> Recording:
    failover = live.failover
    if plain or not console.is_terminal:
        printer = LinePrinter(console, live)
        return Demo(cluster, live, printer.show, failover).play()
    with RichLive(console=console, screen=True, auto_refresh=False) as screen:
        last = 0.0

        def show() -> None:
            nonlocal last
            if time.monotonic() - last >= 0.25:
                last = time.monotonic()
                screen.update(draw(live, console.width, console.height, rail_bps), refresh=True)

        return Demo(cluster, live, show, failover).play()


class LinePrinter:
    """The view without a terminal: each new line of the log, and the throughput every 5 s."""

    def __init__(self, console: Console, live: Live) -> None:
        self._console = console
        self._live = live
        self._printed = 0
        self._next_s = 0.0

    def show(self) -> None:
        """Print what is new."""
        live = self._live
        new = live.lines_ever - self._printed
        self._printed = live.lines_ever
        if new:
            for line in list(live.log)[-new:]:
                style = LOG_STYLE.get(line.style, "")
                self._console.print(f"{line.at_s:7.2f} s  {line.text}", style=style, markup=False)
        if live.start_ns and live.now_s >= self._next_s and live.total:
            self._next_s += 5.0
            recent = list(live.total)[-10:]
            gbit = sum(recent) / len(recent) * 8 / 1e9
            self._console.print(f"{live.now_s:7.2f} s  job at {gbit:.2f} Gbit/s", style="bold")


def _after_run(console: Console, recording: Recording, out: Path, rail_bps: float) -> int:
    analysis = analyse(recording)
    console.print(_timeline_table(recording))
    console.print(_fault_table(recording, analysis, console.width))
    console.print(f"full speed {analysis.full_speed * 8 / 1e9:.2f} Gbit/s")
    if caveat := report.caveat(recording, analysis, rail_bps):
        console.print(caveat, style="yellow")
    good = analysis.errors == 0 and analysis.corrupt_bytes == 0 and analysis.clean
    console.print(report.errors_line(analysis), style="bold green" if good else "bold red")
    console.print(report.verdict(analysis), style="green" if analysis.ok else "red")
    for end in recording.ends:
        if not end.clean:
            console.print(f"  {end.host}: exit status {end.status}, {end.error or end.end}")
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(recording.start_wall_ns / 1e9))
    path = report.write(out / stamp, recording, analysis, rail_bps=rail_bps, version=_version())
    latest = out / "latest"
    latest.unlink(missing_ok=True)
    latest.symlink_to(stamp)
    console.print(f"report: {path}", soft_wrap=True)
    return 0 if analysis.ok else 1


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


def _fault_table(recording: Recording, analysis: Analysis, width: int) -> Table:
    table = Table(title="what each fault cost", title_justify="left", box=box.SIMPLE_HEAD)
    narrow = width < WIDE
    table.add_column("#")
    table.add_column("fault")
    if not narrow:
        table.add_column("where")
    for name in ("injected", "detected", "steered", "dip", "carried"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("full\nspeed", "rail\nback", "resent", "flaps"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, result in enumerate(analysis.results, 1):
        row = report.row(recording, result)
        figures = (row.injected, row.detected, row.steered, row.dip, row.carried)
        fault = [f"{row.title}\n{row.where}"] if narrow else [row.title, row.where]
        table.add_row(str(number), *fault, *figures, row.back, row.rejoined, row.resent, row.flaps)
    return table


def _version() -> str:
    try:
        return version("fabricd")
    except PackageNotFoundError:
        return "?"


if __name__ == "__main__":
    sys.exit(main())
