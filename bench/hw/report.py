"""Reads what `accept.sh` gathered, and judges it. Standard library alone: it runs on any host.

``preflight DIR H1 H2`` compares the hosts' `plugin check` and says what keeps the run from being
made; ``cycles LOG`` says how many cycles of all_reduce_perf fill a time; ``judge DIR`` prints the
report and writes ``report.json`` and ``report.txt``. Exit status: 0 holds, 1 does not, 2 refused.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LARGE = 64 << 20
"""Bytes from which bus bandwidth is held against NCCL's own transport."""
STALL_S = 1.0
SETTLE_S = 2.0
"""After the port went, before the bandwidth on the NICs left is taken."""
AFTER = 0.95
DURING = 0.9
"""Of what the NICs that are left can carry."""
_STAMP = re.compile(r"^(\d{1,12}\.\d{1,9}) (.*)$")
_ROW = re.compile(
    r"^\s*(?P<size>\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+"
    r"\s+(?P<time>[\d.]+)\s+[\d.]+\s+(?P<bus>[\d.]+)\s+(?P<wrong>\d+|N/A)"
    r"\s+(?P<time_in>[\d.]+)\s+[\d.]+\s+(?P<bus_in>[\d.]+)\s+(?P<wrong_in>\d+|N/A)\s*$"
)
_CHANNEL = re.compile(r"Channel \d+/\d+ : .* via NET/(?P<net>[\w-]+)/\d+(?P<options>\S*)")
_NETWORK = re.compile(r"Using network (\S+)")


class ReportError(Exception):
    """A file that accept.sh wrote is missing or makes no sense; the text says which."""


@dataclass(frozen=True)
class Sample:
    """One row of all_reduce_perf, out of place.

    Attributes:
        at: when it was printed, seconds since the epoch.
        size: bytes.
        time_us: of one iteration.
        bus: GB/s of bus bandwidth.
        wrong: elements that were wrong, in and out of place; None when they were not checked.
    """

    at: float
    size: int
    time_us: float
    bus: float
    wrong: int | None


@dataclass(frozen=True)
class Log:
    """A run: its rows, and what NCCL said of its network."""

    samples: tuple[Sample, ...]
    networks: frozenset[str]
    channels: int
    direct: int
    status: int


@dataclass(frozen=True)
class Row:
    """One figure, as of the project's benchmarks: ``ok`` compares ``got`` with ``asked``."""

    name: str
    asked: float | None
    got: float | None
    unit: str
    better: str
    peer: float | None = None
    note: str = ""

    @property
    def ok(self) -> bool | None:
        """Whether the figure holds; None when nothing is asked. What was not measured fails."""
        if self.asked is None:
            return None
        if self.got is None or not math.isfinite(self.got):
            return False
        if self.better == "equal":
            return self.got == self.asked
        return self.got >= self.asked if self.better == "higher" else self.got <= self.asked

    def document(self) -> dict[str, Any]:
        """For report.json."""
        ratio = self.got / self.peer if self.peer and self.got is not None else None
        return asdict(self) | {"ratio": ratio, "ok": self.ok}


def parse_log(lines: Iterable[str], status: int) -> Log:
    """A log of stamped lines; lines of other programs are passed over."""
    samples = []
    networks = set()
    channels = direct = 0
    for line in lines:
        stamped = _STAMP.match(line.rstrip("\n"))
        if stamped is None:
            continue
        text = stamped[2]
        if row := _ROW.match(text):
            words = (row["wrong"], row["wrong_in"])
            wrong = None if "N/A" in words else sum(int(word) for word in words)
            samples.append(
                Sample(float(stamped[1]), int(row["size"]), float(row["time"]), float(row["bus"]),
                       wrong)
            )  # fmt: skip
        elif network := _NETWORK.search(text):
            networks.add(network[1])
        elif channel := _CHANNEL.search(text):
            channels += 1
            direct += "GDRDMA" in channel["options"]
    return Log(tuple(samples), frozenset(networks), channels, direct, status)


def read_log(directory: Path, name: str) -> Log:
    """The run of this name.

    Raises:
        ReportError: it was not made.
    """
    try:
        status = int((directory / f"{name}.status").read_text("ascii"))
        with (directory / f"{name}.log").open(encoding="utf-8", errors="replace") as file:
            return parse_log(file, status)
    except (OSError, ValueError) as error:
        raise ReportError(f"the run '{name}' left no log: {error}") from error


def cycles(log: Log, size: int, iterations: int, seconds: float) -> int:
    """How many cycles of so many iterations, in and out of place, fill this time.

    Raises:
        ReportError: no row of the log has this size.
    """
    times = [sample.time_us for sample in log.samples if sample.size == size]
    if not times or times[-1] <= 0:
        raise ReportError(f"no row of {size} bytes")
    return max(10, math.ceil(seconds * 1e6 / (times[-1] * iterations * 2)))


def bandwidth(stock: Log, fabric: Log, min_ratio: float) -> list[Row]:
    """Bus bandwidth beside NCCL's own transport, and that each run used the network it names."""
    theirs = {sample.size: sample.bus for sample in stock.samples}
    rows = []
    for name, log, network in (("NCCL's own IB", stock, "IB"), ("the plugin", fabric, "FABRIC")):
        seen = ", ".join(sorted(log.networks)) or "none"
        only = 1.0 if log.networks == {network} else 0.0
        rows += [
            Row(f"run over {name}: network {network}", 1, only, "yes", "equal", note=seen),
            Row(f"run over {name}: exit status", 0, float(log.status), "", "equal"),
            Row(f"run over {name}: wrong elements", 0, _wrong(log), "elements", "equal"),
        ]
    large = [sample for sample in fabric.samples if sample.size >= LARGE and sample.size in theirs]
    if not large:
        rows.append(Row("bus bandwidth, large messages", min_ratio, None, "x", "higher"))
    for sample in fabric.samples:
        peer = theirs.get(sample.size)
        if peer is None:
            continue
        asked = peer * min_ratio if sample.size >= LARGE else None
        rows.append(
            Row(f"bus bandwidth, {_size(sample.size)}", asked, sample.bus, "GB/s", "higher", peer)
        )
    return rows


def gpudirect(stock: Log, fabric: Log) -> list[Row]:
    """Whether every network channel goes from NIC to GPU, by NCCL's own log."""
    shares = [log.direct / log.channels if log.channels else None for log in (stock, fabric)]
    note = f"{fabric.direct} of {fabric.channels} channels; NCCL's own IB: {stock.direct} of " \
           f"{stock.channels}"  # fmt: skip
    return [Row("channels with GPUDirect (GDRDMA)", 1, shares[1], "of all", "higher", shares[0],
                note)]  # fmt: skip


def failover(log: Log, down: float, up: float, nics: int, seen_down: int) -> list[Row]:
    """What the disabled port cost.

    Args:
        log: of the run.
        down: when the port was disabled, seconds since the epoch.
        up: when it was enabled again.
        nics: of the host whose port it was.
        seen_down: transitions to DOWN on the hosts' timelines in that time.
    """
    before = [sample for sample in log.samples if sample.at < down]
    settled = down + min(SETTLE_S, (up - down) / 2)
    during = [sample for sample in log.samples if settled <= sample.at < up]
    back = [sample for sample in log.samples if sample.at >= up]
    after = back[len(back) * 2 // 3 :]
    gaps = _gaps(log.samples, down, up)
    usual = statistics.median(_gaps(before, 0.0, down)) if len(before) > 2 else None
    stall = max(gaps) - usual if gaps and usual is not None else None
    peer = statistics.median(s.bus for s in before) if before else None
    left = (nics - 1) / nics
    return [
        Row("port disabled: links seen DOWN by fabricd", 1, float(seen_down), "links", "higher",
            note="0: the port command did not take a link down"),
        Row("port disabled: exit status of the job", 0, float(log.status), "", "equal"),
        Row("port disabled: wrong elements", 0, _wrong(log), "elements", "equal"),
        Row("port disabled: longest stall", STALL_S, stall, "s", "lower"),
        Row("port disabled: bus bandwidth on the NICs left", peer and peer * left * DURING,
            _median(during), "GB/s", "higher", peer),
        Row("port enabled again: bus bandwidth", peer and peer * AFTER, _median(after), "GB/s",
            "higher", peer),
    ]  # fmt: skip


def _gaps(samples: Sequence[Sample], start: float, end: float) -> list[float]:
    """Seconds between rows that follow each other, where that time touches start to end."""
    pairs = itertools.pairwise(samples)
    return [b.at - a.at for a, b in pairs if b.at >= start and a.at <= end]


def _wrong(log: Log) -> float | None:
    """Wrong elements of all rows; None when one row was not checked, or there is none."""
    counts = [sample.wrong for sample in log.samples]
    if not counts or None in counts:
        return None
    return float(sum(count or 0 for count in counts))


def _median(samples: Sequence[Sample]) -> float | None:
    return statistics.median(sample.bus for sample in samples) if samples else None


def _size(number: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number >= 1 << shift:
            return f"{number / (1 << shift):g} {unit}"
    return f"{number} B"


def downs(rows: Any, start: float, end: float) -> int:  # noqa: ANN401 - JSON
    """Transitions to DOWN between two times, in the answer of `fabricctl timeline --json`."""
    count = 0
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and row.get("kind") == "link_state" and row.get("to") == "down":
            at = row.get("wall_ns")
            count += isinstance(at, int) and start <= at / 1e9 <= end
    return count


def usable_ports(text: str) -> tuple[int, str]:
    """Usable verbs ports in a `plugin check --json`, and what is wrong with the plugin.

    Raises:
        ReportError: it is no such answer.
    """
    try:
        line = next(x for x in text.splitlines() if x.startswith('{"fabricd_plugin_check"'))
        answer = json.loads(line)
        ports = [port for port in answer["ports"] if not port.get("problem")]
        if "verbs" not in answer["plugin"].get("transports", []):
            return len(ports), answer["plugin"].get("problem") or "the plugin carries no verbs"
        return len(ports), str(answer["plugin"].get("problem", ""))
    except (StopIteration, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError("no answer of `fabricctl plugin check --json`") from error


def preflight(directory: Path, hosts: Sequence[str], wanted: int) -> list[str]:
    """What keeps the run from being made; nothing when it can be."""
    problems = []
    counts = {}
    for host in hosts:
        try:
            count, problem = usable_ports((directory / f"check.{host}").read_text("utf-8"))
        except (OSError, ReportError) as error:
            problems.append(f"{host}: {error}")
            continue
        counts[host] = count
        if problem:
            problems.append(f"{host}: {problem}")
        if not 2 <= count <= 8 or (wanted and count != wanted):
            asked = str(wanted) if wanted else "2 to 8"
            problems.append(f"{host}: {count} usable verbs ports, not {asked}")
        problems += [f"{host}: doctor: {text}" for text in _criticals(directory, host)]
    if len(set(counts.values())) > 1:
        problems.append("the hosts have different numbers of usable verbs ports")
    return problems


def _criticals(directory: Path, host: str) -> list[str]:
    try:
        document = json.loads((directory / f"doctor.{host}").read_text("utf-8"))
        return [x["seen"] for x in document["findings"] if x["severity"] == "critical"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"no answer of `fabricctl doctor --json`: {error!r}"]


def judge(directory: Path, min_ratio: float) -> tuple[list[Row], dict[str, Any]]:
    """All rows of a run, and what it was made of.

    Raises:
        ReportError: something of it is missing.
    """
    stock, fabric, fault = (read_log(directory, name) for name in ("stock", "fabric", "fault"))
    hosts = sorted(path.name.partition(".")[2] for path in directory.glob("check.*"))
    try:
        words = dict(line.split() for line in (directory / "port").read_text("ascii").splitlines())
        down, up = float(words["down"]), float(words["up"])
    except (OSError, ValueError, KeyError) as error:
        raise ReportError("the port was not disabled and enabled: the job ended before") from error
    seen = 0
    ports = []
    for host in hosts:
        ports.append(usable_ports((directory / f"check.{host}").read_text("utf-8"))[0])
        try:
            text = (directory / f"timeline.{host}").read_text("utf-8")
            seen += downs(json.loads(text), down - 1, up + 1)
        except (OSError, ValueError):
            continue
    rows = [
        *bandwidth(stock, fabric, min_ratio),
        *gpudirect(stock, fabric),
        *failover(fault, down, up, min(ports, default=1), seen),
    ]
    return rows, {"hosts": hosts, "nics": min(ports, default=0), "min_ratio": min_ratio}


def text_of(rows: Sequence[Row]) -> str:
    """The report as a table."""
    lines = [f"{'':<52} {'asked':>10} {'got':>10} {'unit':<9} {'peer':>9} {'ratio':>6}  ok"]
    for row in rows:
        document = row.document()
        word = {None: "", True: "yes", False: "NO"}[row.ok]
        note = f"  ({row.note})" if row.note and row.ok is not True else ""
        lines.append(
            f"{row.name:<52} {_figure(row.asked):>10} {_figure(row.got):>10} {row.unit:<9} "
            f"{_figure(row.peer):>9} {_figure(document['ratio']):>6}  {word}{note}"
        )
    return "\n".join(lines) + "\n"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Judges what accept.sh gathered.")
    commands = parser.add_subparsers(dest="command", required=True)
    before = commands.add_parser("preflight", help="what keeps the run from being made")
    before.add_argument("directory", type=Path)
    before.add_argument("hosts", nargs=2)
    before.add_argument("--nics", type=int, default=0)
    fill = commands.add_parser("cycles", help="how many cycles fill a time")
    fill.add_argument("log", type=Path)
    fill.add_argument("--size", type=int, required=True)
    fill.add_argument("--iterations", type=int, required=True)
    fill.add_argument("--seconds", type=float, required=True)
    last = commands.add_parser("judge", help="the report")
    last.add_argument("directory", type=Path)
    last.add_argument("--min-ratio", type=float, default=0.95)
    return parser.parse_args()


def main() -> int:
    """Run one of the three commands."""
    asked = _arguments()
    try:
        if asked.command == "preflight":
            problems = preflight(asked.directory, asked.hosts, asked.nics)
            for problem in problems:
                sys.stderr.write(f"accept.sh: refused: {problem}\n")
            return 2 if problems else 0
        if asked.command == "cycles":
            with asked.log.open(encoding="utf-8", errors="replace") as file:
                log = parse_log(file, 0)
            print(cycles(log, asked.size, asked.iterations, asked.seconds))
            return 0
        rows, meta = judge(asked.directory, asked.min_ratio)
    except (ReportError, OSError) as error:
        sys.stderr.write(f"accept.sh: {error}\n")
        return 1
    text = text_of(rows)
    sys.stdout.write(text)
    (asked.directory / "report.txt").write_text(text, encoding="utf-8")
    document = {"meta": meta, "rows": [row.document() for row in rows]}
    (asked.directory / "report.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    return 0 if all(row.ok is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
