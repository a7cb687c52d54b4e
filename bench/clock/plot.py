"""Error over time of fabric time, ptp4l and chronyd while the load changes: a picture."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.clock.live import LOADS, running, topology
from bench.clock.peers import Chrony, Ptp4l, load, ptp4l_offsets
from bench.clock.services import Fabric, Seen
from bench.report import Row, percentile
from lab.node import REPO

TARGET = REPO / "docs/design/images" / "clock-error.png"
ORDER = ("idle", "udp400", "udp800", "tcp", "tcp2", "idle")
MOST_BYTES = 200_000
Points = list[tuple[float, float]]
"""Seconds since the beginning, and an error in ns without sign."""


@dataclass(slots=True)
class Story:
    """What was seen."""

    loads: list[tuple[float, float, str]] = field(default_factory=list)
    """From, until, which."""
    fabric: Points = field(default_factory=list)
    ptp4l: Points = field(default_factory=list)
    chrony: Points = field(default_factory=list)


def ptp4l_points(log: str, began_s: float) -> Points:
    """The offsets that ptp4l's client logged since then (CLOCK_MONOTONIC). Pure."""
    found = ((at - began_s, abs(ns)) for at, ns in ptp4l_offsets(log))
    return [point for point in found if point[0] >= 0]


def _watch(fabric: Fabric, chrony: Chrony, story: Story, began: float, seconds: float) -> None:
    asked = 0.0

    def look() -> None:
        nonlocal asked
        seen = Seen()
        fabric.look(seen)
        now = time.monotonic()
        story.fabric += [(now - began, off) for off in seen.mesh]
        if now - asked >= 0.5:
            asked = now
            error = chrony.error_ns()
            if error is not None:
                story.chrony.append((now - began, abs(error)))

    fabric.run(seconds, look)


def draw(story: Story, target: Path) -> None:
    """Write the picture.

    Raises:
        OSError: it cannot be written.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.2), dpi=110)
    series: Sequence[tuple[str, Points, str]] = (
        ("ptp4l, software stamps", story.ptp4l, "#c44e52"),
        ("chronyd, its regression", story.chrony, "#dd8452"),
        ("fabric time, seven hosts", story.fabric, "#4c72b0"),
    )
    for name, points, colour in series:
        at, off = [x for x, _ in points], [max(y, 0.5) for _, y in points]
        size, alpha = (2, 0.25) if len(points) > 5000 else (5, 0.6)
        axes.scatter(at, off, s=size, alpha=alpha, c=colour, linewidths=0, label=name)
    for number, (since, until, kind) in enumerate(story.loads):
        if number % 2:
            axes.axvspan(since, until, color="#000000", alpha=0.05, linewidth=0)
        axes.text((since + until) / 2, 1.02, LOADS[kind], ha="center", fontsize=8,
                  transform=axes.get_xaxis_transform())  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylim(0.4, 3e6)
    axes.set_xlim(0, story.loads[-1][1])
    axes.set_xlabel("seconds")
    axes.set_ylabel("error, ns")
    axes.grid(visible=True, which="major", alpha=0.3)
    legend = axes.legend(loc="upper right", fontsize=8, markerscale=3)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Software": None})
    plt.close(figure)


def plot(*, quick: bool) -> list[Row]:
    """Six loads one after another."""
    seconds = 8.0 if quick else 30.0
    story = Story()
    with ExitStack() as stack:
        cluster, fabric = stack.enter_context(running(topology("clockplot")))
        ptp4l, chrony = Ptp4l(cluster), Chrony(cluster)
        for peer in (ptp4l, chrony):
            stack.enter_context(peer.running())
        fabric.run(5.0)
        began = time.monotonic()
        for kind in ORDER:
            since = time.monotonic() - began
            with load(cluster, kind, fabric.run):
                _watch(fabric, chrony, story, began, seconds)
            story.loads.append((since, time.monotonic() - began, kind))
        story.ptp4l = ptp4l_points((cluster.nodes[1].dir / "ptp4l-client.log").read_text(), began)
    draw(story, TARGET)
    worst = [percentile([y for _, y in points], 0.99) for points in
             (story.fabric, story.ptp4l, story.chrony)]  # fmt: skip
    return [
        Row("picture of errors over time: its size", MOST_BYTES, TARGET.stat().st_size, "bytes",
            note=f"{TARGET.relative_to(REPO)}; p99 of all its points: fabric time {worst[0]:.0f}, "
            f"ptp4l {worst[1]:.0f}, chronyd {worst[2]:.0f} ns"),
    ]  # fmt: skip
