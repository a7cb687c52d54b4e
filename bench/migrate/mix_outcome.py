"""What became of each failure of a mix, and the rows of that. Pure.

A failure is resolved when all ranks went on, no step was run again, every state that was hashed
until the next failure is that of the undisturbed job, and nobody had to do anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.migrate.events import Events
from bench.migrate.failure_table import SOURCE, TABLE, Drawn, not_tried
from bench.migrate.jobs import RANKS
from bench.report import Row

ASKED = 90.0
"""Percent of all failures that have to be resolved."""


@dataclass(frozen=True)
class Played:
    """One failure as it was played in one job.

    ``moves``: only a takeover or a planned move resolves it, and the ledger has a record of that.
    ``ended``: what the job said last, where the failure ended it. ``person``: what had to be done
    by hand, as nothing happened in time. ``ledger``: fields of its records of takeovers since.
    """

    drawn: Drawn
    target: str
    at_ns: int
    moves: bool = True
    ended: str = ""
    person: str = ""
    ledger: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Course:
    """One job: its failures in their order, and what its processes recorded."""

    played: Sequence[Played]
    events: Events


@dataclass(frozen=True)
class Outcome:
    """``next_s``: from the failure to the next step of all ranks. ``misses``: why not resolved."""

    drawn: Drawn
    target: str
    next_s: float | None
    ledger: tuple[Mapping[str, Any], ...]
    misses: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """For people: what was missed."""
        one = self.drawn
        return f"#{one.number} {one.failure_class}, {one.play}, {self.target}: " + "; ".join(
            self.misses
        )


def outcomes(course: Course, reference: Events) -> list[Outcome]:
    """The outcome of each failure of one job."""
    events, played = course.events, course.played
    ends = [*(one.at_ns for one in played[1:]), None]
    return [
        _outcome(one, until, events, reference) for one, until in zip(played, ends, strict=True)
    ]


def _outcome(one: Played, until_ns: int | None, events: Events, reference: Events) -> Outcome:
    def before(at_ns: int) -> bool:
        return until_ns is None or at_ns < until_ns

    done = max((each.step for each in events.commits if each.at_ns <= one.at_ns), default=0)
    last = max((each.step for each in events.commits if before(each.at_ns)), default=0)
    first: dict[int, int] = {}
    for each in events.commits:
        if one.at_ns < each.at_ns and before(each.at_ns) and each.step > done:
            first.setdefault(each.rank, each.at_ns)
    drawn = [each.step for each in events.draws if one.at_ns < each.at_ns and before(each.at_ns)]
    again = done - min(drawn, default=done)
    window = [key for key in events.states if done < key[1] <= last]
    whole = {step for _, step in window if all((rank, step) in window for rank in range(RANKS))}
    wrong = [key for key in window if events.states[key] != reference.states.get(key)]

    went_on = len(first) == RANKS
    next_s = (max(first.values()) - one.at_ns) / 1e9 if went_on else None
    outcome = Outcome(one.drawn, one.target, next_s, one.ledger)
    lost = sum(int(row.get("steps_lost", 0)) for row in one.ledger)
    for missed, why in (
        (bool(one.ended), f"the job ended: {one.ended}"),
        (bool(one.person), one.person),
        (not went_on and not one.ended, "not all ranks went on"),
        (again > 0, f"{again} steps were run again"),
        (lost > 0, f"{lost} steps lost, says the ledger"),
        (one.moves and not one.ledger, "the ledger has no record of it"),
        (bool(wrong), f"{len(wrong)} of {len(window)} states differ from the undisturbed job's"),
        (went_on and not whole, "no state of all ranks was compared"),
    ):
        if missed:
            outcome.misses.append(why)
    return outcome


def rows(found: Sequence[Outcome], seed: int, where: str) -> list[Row]:
    """The table: all failures, then each class of the source."""
    drawn = [one.drawn for one in found]
    good = [one for one in found if not one.misses]
    missed = [one for one in found if one.misses]
    absent = not_tried(drawn)
    records = [row for one in found for row in one.ledger]
    lost = sum(int(row.get("steps_lost", 0)) for row in records)
    times = [one.next_s for one in found if one.next_s is not None]
    return [
        Row(
            "mix: failures resolved at 0 steps lost, part of all that were drawn", ASKED,
            100 * len(good) / len(found), "%", better="higher",
            note=f"{len(good)} of {len(found)}; {SOURCE}; seed {seed}; {where}",
        ),
        Row(
            "mix: misses", None, len(missed), "",
            note=" | ".join(one.sentence for one in missed) or "none",
        ),
        Row(
            "mix: steps lost, by the ledger", 0, lost, "", better="equal",
            note=f"verified; {len(records)} takeovers of {_classes(records)}",
        ),
        Row(
            "mix: failure → next step of all ranks, median", None,
            median(times) if times else float("nan"), "s",
            note=f"the longest {max(times, default=float('nan')):.1f} s", samples={"s": times},
        ),
        *(_class_row(one.name, one.count, found) for one in TABLE if one.name not in absent),
        Row(
            "mix: classes of the table that were not tried", None, len(absent), "",
            note="; ".join(f"{name}: {why}" for name, why in absent.items()) or "none",
        ),
    ]  # fmt: skip


def _class_row(name: str, count: int, found: Sequence[Outcome]) -> Row:
    mine = [one for one in found if one.drawn.failure_class == name]
    good = [one for one in mine if not one.misses]
    times = [one.next_s for one in good if one.next_s is not None]
    took = f"; median {median(times):.2f} s to the next step" if times else ""
    plays = dict.fromkeys(one.drawn.play for one in mine)
    tried = ", ".join(f"{play} {sum(one.drawn.play == play for one in mine)}" for play in plays)
    return Row(
        f"mix: {name} ({count} in the table), resolved of {len(mine)} drawn", None, len(good), "",
        note=f"{tried}{took}",
    )  # fmt: skip


def _classes(records: Sequence[Mapping[str, Any]]) -> str:
    kinds = [str(row["class"]) for row in records]
    return ", ".join(f"{kind} {kinds.count(kind)}" for kind in sorted(set(kinds))) or "no class"
