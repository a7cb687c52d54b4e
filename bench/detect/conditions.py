"""Part *conditions*: are slow, congested and broken rails told apart? Seeded, in virtual time."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.detect.delay_world import LENGTH_S, LINKS, PEERS, RATE, START_S, TRUTH, WAY, Kind, World
from bench.report import Row
from fabricd.delay.condition import Condition, LinkCondition, Seen
from fabricd.delay.rails import SlowRails
from fabricd.delay.view import DelayView
from fabricd.detect.loss import LossTest
from fabricd.detect.loss_rules import LossCounters
from fabricd.probes.records import Direction
from telemetry.events import LinkState

SEEDS = 400
FIRST = 1_000_000
"""Of the seeds that are reported. Those below 100,000 are for trying things out."""
JUDGED_S = 10
"""The last seconds of a story: what is said most of them counts."""
SEC = 10**9


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said in one story."""

    seed: int
    kind: Kind
    said: Condition
    """Of rail 0, at the end."""
    way: str
    others: tuple[str, ...]
    """What was ever said of the other rails, and of rail 0 before it began, but fine."""
    after_s: float | None
    """From the beginning until the right thing was said first."""
    routes: int

    @property
    def right(self) -> bool:
        """The condition is right, and nobody else is accused."""
        return self.said is TRUTH.get(self.kind, Condition.FINE) and not self.others


def judge(seed: int) -> Answer:
    """One story on the daemon's own code."""
    world = World.make(seed)
    view, rails, loss = DelayView(), SlowRails(), LossTest("h0")
    view.configure(world.places)
    links = [LinkCondition() for _ in range(LINKS)]
    said: list[tuple[Condition, str]] = []
    others: set[str] = set()
    after = None
    routes = 0
    truth = TRUTH.get(world.kind, Condition.FINE)
    for second in range(LENGTH_S):
        now = (second + 100) * SEC
        found = world.second()
        stalled = world.stalled_ns()
        lost = {i: int(row.sum()) for i, row in enumerate(world.lost)}
        routes += len(view.feed(found, lost, stalled_ns=stalled))
        worse = loss.feed(_counters(world, view.queued_ns()), now, stalled_ns=stalled).links
        rails.feed(world.pages())
        slow = rails.slow()
        for index, link in enumerate(links):
            state = LinkState.DEGRADED if index in worse else LinkState.UP
            link.step(
                Seen(
                    state, worse.get(index, ""), view.standing(index, Direction.RX),
                    view.standing(index, Direction.TX),
                    "; ".join(one.text for one in slow.get(f"rail{index}", ())),
                    f"rail{index}" in rails.compared,
                ),
                now,
            )  # fmt: skip
            if index or second < START_S:
                others |= {f"rail{index} {link.now}"} - {
                    f"rail{index} {fine}" for fine in (Condition.FINE, Condition.UNKNOWN)
                }
        if second >= START_S:
            said.append((links[0].now, links[0].direction))
            if after is None and links[0].now is truth:
                after = float(second + 1 - START_S)
    (last, way), _ = Counter(said[-JUDGED_S:]).most_common(1)[0]
    return Answer(seed, world.kind, last, way, tuple(sorted(others)), after, routes)


def _counters(world: World, queued: dict[int, int]) -> list[LossCounters]:
    rows = []
    for index, place in enumerate(world.places):
        (rx_lost, tx_lost), sent = world.lost[index].tolist(), int(world.sent[index, 0])
        rows.append(
            LossCounters(
                index, place.link, place.link, place.peer, place.link, sent, sent - rx_lost,
                rx_lost, tx_lost, interval_ns=SEC // RATE, queue_ns=queued.get(index, 0),
            )
        )  # fmt: skip
    return rows


def conditions(*, quick: bool) -> list[Row]:
    """The table."""
    count = 80 if quick else SEEDS
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        answers = pool.map(judge, range(FIRST, FIRST + count), chunksize=4)
    print(table(answers), file=sys.stderr)
    return rows(answers)


def rows(answers: Sequence[Answer]) -> list[Row]:
    """What is asked, and what explains it."""
    out = []
    ill = [c for c in Condition if c in TRUTH.values()]
    out.append(
        Row("fine, slow, congested and broken told apart", 95, _share([a.right for a in answers]),
            "%", "higher", note=f"{len(answers)} scenarios, {LINKS} rails × {PEERS} peers")
    )  # fmt: skip
    for condition in (Condition.FINE, *ill):
        of = [a for a in answers if TRUTH.get(a.kind, Condition.FINE) is condition]
        if not of:
            continue
        said = Counter(str(a.said) for a in of)
        note = ", ".join(f"{n} {name}" for name, n in said.most_common())
        took = [a.after_s for a in of if a.after_s is not None]
        if condition is not Condition.FINE and took:
            note += f"; said after {np.median(took):.0f} s (median), {max(took):.0f} s (most)"
        out.append(
            Row(f"{condition} rails called so", 95, _share([a.said is condition for a in of]), "%",
                "higher", note=note)
        )  # fmt: skip
    ways = [a.way == WAY[a.kind] for a in answers if a.kind in WAY]
    out.append(Row("direction of congestion", 95, _share(ways), "%", "higher", note=f"{len(ways)}"))
    return out


def _share(good: Sequence[bool]) -> float:
    return 100.0 * sum(good) / len(good) if good else 100.0


def table(answers: Sequence[Answer]) -> str:
    """The confusion matrix by kind, as Markdown, and every error in words."""
    columns = [Condition.FINE, Condition.CONGESTED, Condition.SLOW, Condition.BROKEN]
    head = " | ".join(str(c) for c in columns)
    lines = [f"| what happens | truth | n | {head} | others accused |", "|---" * 8 + "|"]
    for kind in Kind:
        of = [a for a in answers if a.kind is kind]
        cells = " | ".join(str(sum(a.said is c for a in of)) for c in columns)
        truth = TRUTH.get(kind, Condition.FINE)
        accused = sum(bool(a.others) for a in of)
        lines.append(f"| {kind} | {truth} | {len(of)} | {cells} | {accused} |")
    lines += [
        f"seed {a.seed}: {a.kind}: {a.said} {a.way}, others {', '.join(a.others)}"
        for a in answers
        if not a.right
    ]
    return "\n".join(lines)
