"""What the shipped rules make of a fault: recorded scrapes, played to Prometheus' rule engine.

Pure, but for `firing`. A fault in the lab lasts for seconds, rules wait for minutes and hours. So:

* *Recorded*: a real Prometheus scraped real daemons through the fault (`lab.observe.prometheus`),
  once a second. Every sample of the recorded time is one of those, at its own time; ``up`` and the
  end of series are Prometheus' own.
* *Prolonged*: between fault and repair, and after the repair, what the last `TAIL_S` seconds of the
  recording showed goes on: gauges repeat these seconds, counters and clocks grow as they did there.
* *Played*: ``promtool test rules`` evaluates ``deploy/prometheus/rules.yml`` as it is, every 15 s.
  No window, no ``for`` and no threshold is scaled.

What is invented is only that a steady state stays as it is.
"""

from __future__ import annotations

import json
import re
import subprocess
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.observe.prometheus import RULES, Series

STEP_S = 5
"""Between the samples that are played."""
TAIL_S = 6
"""So much of the end of a phase is what goes on."""
LOST_S = 2.5
"""A series without a sample for so long was not in the last scrapes."""
HISTORY_S = 120
"""What comes before a fault is prolonged backwards for so long: windows have to begin somewhere."""

Labels = tuple[tuple[str, str], ...]
Alert = tuple[str, ...]
"""Name, then ``label=value`` of those in `SHOWN`."""
SHOWN = ("instance", "link", "peer", "part", "element", "direction", "reason", "source", "class")
_IDENTITY = ("alertname", *SHOWN)
_EXPR = f'count by ({", ".join(_IDENTITY)}) (ALERTS{{alertstate="firing"}})'
_BLOCK = re.compile(r"time: (?P<time>\S+),\s+exp: nil\s+got: (?P<got>[^\n]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Phase:
    """A time that was recorded, and for how long its end goes on."""

    begin_s: float
    """Unix time."""
    end_s: float
    prolong_s: int


@dataclass(frozen=True, slots=True)
class Track:
    """One series as it was recorded."""

    labels: Labels
    """With ``__name__``."""
    times: Sequence[float]
    values: Sequence[float]

    def at(self, when_s: float) -> float | None:
        """The value of the last scrape; None: it was not in it."""
        last = bisect_right(self.times, when_s) - 1
        if last < 0 or when_s - self.times[last] > LOST_S:
            return None
        return self.values[last]

    @property
    def grows(self) -> bool:
        """Whether it goes on by growing: a counter, or the time of something."""
        name = dict(self.labels)["__name__"]
        return name.endswith(("_total", "_bucket", "_sum", "_count", "_timestamp_seconds"))


def tracks(series: Iterable[Series]) -> list[Track]:
    """The result of a range selector (``{job="fabricd"}[5m]``), as Prometheus' API gives it."""
    out = []
    for item in series:
        times, values = zip(*item["values"], strict=True)
        labels = tuple(sorted(item["metric"].items()))
        out.append(Track(labels, [float(t) for t in times], [float(v) for v in values]))
    return out


def play(track: Track, phases: Sequence[Phase]) -> list[float | None]:
    """A value for each step; None: not there."""
    out: list[float | None] = _prolonged(track, phases[0].begin_s + TAIL_S, HISTORY_S)
    if track.grows and out and out[-1] is not None:
        # Before the fault: as if it had grown to what it was.
        offset = out[-1] - (track.at(phases[0].begin_s) or 0.0)
        out = [None if v is None else max(0.0, v - offset) for v in out]
    grown = 0.0
    for phase in phases:
        recorded = int((phase.end_s - phase.begin_s) // STEP_S)
        for step in range(recorded):
            value = track.at(phase.begin_s + step * STEP_S)
            out.append(None if value is None else value + grown)
        more = _prolonged(track, phase.end_s, phase.prolong_s)
        out += [None if v is None else v + grown for v in more]
        if track.grows and more and more[-1] is not None:
            grown += more[-1] - (track.at(phase.end_s) or 0.0)
    return out


def _prolonged(track: Track, end_s: float, for_s: int) -> list[float | None]:
    """Steps after ``end_s`` in which its last seconds go on."""
    steps = for_s // STEP_S
    last = track.at(end_s)
    if last is None:
        return [None] * steps
    first = track.at(end_s - TAIL_S)
    if track.grows:
        rate = 0.0 if first is None else max(0.0, last - first) / TAIL_S
        return [last + rate * STEP_S * (i + 1) for i in range(steps)]
    seconds = [track.at(end_s - TAIL_S + 1 + s) for s in range(TAIL_S)]
    shown = [value for value in seconds if value is not None]
    return [shown[i % len(shown)] for i in range(steps)]


def document(
    recorded: Iterable[Track],
    phases: Sequence[Phase],
    moments: Mapping[str, int],
    rules: Path = RULES,
) -> str:
    """A file for ``promtool test rules`` (JSON is YAML).

    Args:
        recorded: all series.
        phases: in order.
        moments: name → seconds after the first phase began.
        rules: under test.
    """
    inputs = []
    for track in recorded:
        labels = dict(track.labels)
        name = labels.pop("__name__")
        inner = ",".join(f"{k}={json.dumps(v)}" for k, v in labels.items())
        inputs.append({"series": f"{name}{{{inner}}}", "values": _notation(play(track, phases))})
    checks = [
        {"expr": _EXPR, "eval_time": f"{HISTORY_S + at}s", "exp_samples": []}
        for at in moments.values()
    ]
    test = {"interval": f"{STEP_S}s", "input_series": inputs, "promql_expr_test": checks}
    whole = {"rule_files": [str(rules)], "evaluation_interval": "15s", "tests": [test]}
    return json.dumps(whole)


def _notation(values: Sequence[float | None]) -> str:
    """promtool's: the end of a series is marked as Prometheus marks it, and runs are short."""
    words: list[str] = []
    at = 0
    before: float | None = None
    while at < len(values):
        value = values[at]
        run = 1
        while at + run < len(values) and values[at + run] == value:
            run += 1
        if value is None:
            words += ["stale"] * (before is not None)
            missing = run - (before is not None)
            words += [f"_x{missing}"] if missing else []
        else:
            words.append(f"{value!r}x{run - 1}" if run > 1 else repr(value))
        before = value
        at += run
    return " ".join(words)


def firing(test: str, where: Path, moments: Mapping[str, int]) -> dict[str, set[Alert]]:
    """All alerts that fire at each moment; runs promtool on a `document`.

    Raises:
        ValueError: promtool said something else than what fires.
    """
    file = where / "replay.yml"
    file.write_text(test)
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    by_time = {found["time"]: found["got"] for found in _BLOCK.finditer(said)}
    if (done.returncode == 0) != (not by_time) or said.count("expr:") != len(by_time):
        raise ValueError(f"promtool: {said[:3000]}")
    out: dict[str, set[Alert]] = {}
    for name, at in moments.items():
        got = by_time.pop(_duration(HISTORY_S + at), "")
        out[name] = {_alert(part) for part in re.findall(r"\{[^}]*\}", got)}
    if by_time:
        raise ValueError(f"promtool speaks of other times: {sorted(by_time)}")
    return out


def _alert(labels: str) -> Alert:
    found = dict(_LABEL.findall(labels))
    return (found["alertname"], *(f"{key}={found[key]}" for key in SHOWN if found.get(key)))


def _duration(seconds: int) -> str:
    """As Prometheus prints one: ``1h5m``."""
    out = ""
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        out += f"{seconds // size}{unit}" if seconds >= size else ""
        seconds %= size
    return out
