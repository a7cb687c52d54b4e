"""What the second act showed: a table of its strikes, the verdict, and one HTML file."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich import box
from rich.table import Table

from lab.demo.live import describe
from lab.demo.training.act import Act
from lab.demo.training.story import RANKS, TOTAL, Strike

COLUMNS = (
    "detected", "decided and fenced", "told to go on", "next step of all ranks", "steps lost",
    "moved", "longest pause of rank 0",
)  # fmt: skip


def failures(act: Act) -> list[str]:
    """What did not come out as promised; empty: all did."""
    wrong = []
    for strike in act.strikes:
        if strike.expected and strike.committed_ns is None:
            wrong.append(f"{strike.title}: not all ranks went on")
        if not strike.expected and strike.generation:
            wrong.append(f"{strike.title}: it cost a generation, and should have been absorbed")
        if strike.steps_lost:
            wrong.append(f"{strike.title}: {strike.steps_lost} steps are lost")
    if bad := {host: code for host, code in act.statuses.items() if code}:
        wrong.append(f"fabric-run ended with {bad}")
    if len(act.weights) < RANKS or not all(act.weights.values()):
        wrong.append("not all ranks have written their weights")
    elif act.weights != act.undisturbed:
        wrong.append(f"the weights are {act.weights}, and undisturbed {act.undisturbed}")
    if doubled := act.progress.doubled_or_missing(RANKS):
        wrong.append(f"{doubled} steps were applied twice or never")
    if not act.ledger:
        wrong.append("the ledger was not verified")
    return [*wrong, *act.shards.failures()]


def played(act: Act) -> list[Strike]:
    """All strikes, with that of the job in shards where it was played."""
    return [*act.strikes, *([act.shards.strike] if act.shards.strike.start_ns else [])]


def row(strike: Strike) -> list[str]:
    """The cells of one strike, in the order of ``COLUMNS``."""
    return [
        _ms(strike.since_start_ms(strike.decided_ns)),
        _ms(strike.since_start_ms(strike.fenced_ns)),
        _ms(strike.since_start_ms(strike.running_ns)),
        _ms(strike.since_start_ms(strike.committed_ns)) if strike.expected else "not needed",
        str(strike.steps_lost),
        strike.moved or "nobody",
        _ms(strike.longest_gap_ms),
    ]


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} ms"


def table(act: Act) -> Table:
    """One row a strike."""
    made = Table(
        title="what was done to the jobs (over the plugin; that with shards over gloo; on CPUs)",
        box=box.SIMPLE,
    )
    made.add_column("strike")
    for name in COLUMNS:
        made.add_column(name, justify="right")
    for strike in played(act):
        made.add_row(f"{strike.title} ({strike.target})", *row(strike))
    return made


def sentence(act: Act) -> str:
    """The verdict in one line."""
    digest = next(iter(act.weights.values()), "")[:16]
    return (
        f"{TOTAL} steps on {RANKS} ranks, {act.generation} generations, 0 steps lost; the weights "
        f"are those of the undisturbed run of the same seed (SHA-256 {digest}…); so are the "
        "shards of the second job"
    )


def timeline(act: Act) -> list[dict[str, str]]:
    """Rows of the hosts' timelines that concern a host, a job or the broker."""
    kinds = {"peer", "fence", "job", "broker", "link_state", "flap"}
    rows = []
    for event in sorted(act.events, key=lambda one: one.mono_ns):
        at_s = (event.mono_ns - act.start_ns) / 1e9
        if event.kind.value not in kinds or at_s < 0:
            continue
        text = describe(event)
        rows.append(
            {
                "at": f"{at_s:.3f} s", "host": event.host, "link": event.link,
                "kind": event.kind.value,
                "text": text[1].split("  ", 1)[-1] if text else event.reason,
            }
        )  # fmt: skip
    return rows


def loss_chart(act: Act, width: int = 1000, height: int = 180) -> str:
    """Points of an SVG polyline: loss of rank 0 over time."""
    steps = [step for step in act.progress.steps if step.rank == 0]
    if len(steps) < 2:
        return ""
    start, end = steps[0].t_ns, steps[-1].t_ns
    low, high = min(s.loss for s in steps), max(s.loss for s in steps)
    return " ".join(
        f"{(s.t_ns - start) / max(1, end - start) * width:.1f},"
        f"{height - (s.loss - low) / ((high - low) or 1) * height:.1f}"
        for s in steps
    )


def result(act: Act) -> dict[str, Any]:
    """Figures of the run, for programs."""
    return {
        "failures": failures(act),
        "strikes": [
            {"title": strike.title, "target": strike.target,
             **dict(zip(COLUMNS, row(strike), strict=True))}
            for strike in played(act)
        ],
        "weights": act.weights, "undisturbed": act.undisturbed, "ledger": act.ledger,
        "shards": act.shards.weights, "undisturbed_shards": act.shards.undisturbed,
    }  # fmt: skip


def write(directory: Path, act: Act, version: str) -> Path:
    """Write ``training.html`` and ``training.json``; the path of the former."""
    directory.mkdir(parents=True, exist_ok=True)
    environment = Environment(
        loader=FileSystemLoader([Path(__file__).parent, Path(__file__).parents[1]]),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    )  # fmt: skip
    wrong = failures(act)
    text = environment.get_template("training.html.j2").render(
        version=version, when=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        failures=wrong, sentence=sentence(act), columns=COLUMNS, rails=[],
        rows=[(f"{one.title} ({one.target})", row(one)) for one in played(act)],
        shards=act.shards,
        chart=loss_chart(act), log=act.log, timeline=timeline(act), ledger=act.ledger,
        weights=act.weights, undisturbed=act.undisturbed,
    )  # fmt: skip
    path = directory / "training.html"
    path.write_text(text)
    (directory / "training.json").write_text(json.dumps(result(act), indent=1) + "\n")
    return path
