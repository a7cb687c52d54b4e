"""What the processes of a job recorded, put together: recoveries, samples, states. Pure.

A process of rank ``r`` writes which samples it takes *before* they can have any effect. So the last
attempt of a rank at a step is the one whose gradients counted, whoever made it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True, slots=True)
class Draw:
    """One attempt of a rank at a step."""

    at_ns: int
    pid: int
    rank: int
    step: int
    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """A process has applied ``step`` steps, the last one in ``generation``."""

    at_ns: int
    pid: int
    rank: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class Crash:
    """A process raised an exception."""

    at_ns: int
    pid: int
    rank: int
    step: int


@dataclass(slots=True)
class Events:
    """All events of a job. ``states``: digests by (rank, applied steps); several if it has them."""

    draws: list[Draw] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    crashes: list[Crash] = field(default_factory=list)
    states: dict[tuple[int, int], set[str]] = field(default_factory=lambda: defaultdict(set))


def parse_events(texts: Mapping[int, str]) -> Events:
    """Events from the files of all processes, by pid, in the order of time.

    Raises ``ValueError`` for a line that is no event. A last line without its end is left out: the
    process was killed while it wrote.
    """
    events = Events()
    for pid, text in texts.items():
        for line in text.split("\n")[:-1]:
            match line.split():
                case ["draw", at, rank, step, samples]:
                    numbers = tuple(int(one) for one in samples.split(","))
                    events.draws.append(Draw(int(at), pid, int(rank), int(step), numbers))
                case ["commit", at, rank, generation, step]:
                    commit = Commit(int(at), pid, int(rank), int(generation), int(step))
                    events.commits.append(commit)
                case ["crash", at, rank, step]:
                    events.crashes.append(Crash(int(at), pid, int(rank), int(step)))
                case ["state", _, rank, step, digest]:
                    events.states[int(rank), int(step)].add(digest)
                case _:
                    raise ValueError(f"events of process {pid}: no event: {line!r:.80}")
    events.draws.sort(key=lambda draw: draw.at_ns)
    events.commits.sort(key=lambda commit: commit.at_ns)
    return events


@dataclass(frozen=True, slots=True)
class Resumed:
    """The first commit of every rank in a later generation than that of the fault.

    ``lost_steps``: steps that were applied before the fault and had to be run again. A survivor
    that had voted for a step may apply it in the later generation, from the gradients that it has.
    """

    generation: int
    at_ns: int
    lost_steps: int


def resumed(events: Events, fault_ns: int, world: int) -> Resumed | None:
    """When ``world`` ranks have committed again after a fault; None where they never did."""
    before = [one for one in events.commits if one.at_ns <= fault_ns]
    last = max((one.generation for one in before), default=0)
    done = max((one.step for one in before), default=0)
    first: dict[int, Commit] = {}
    for one in events.commits:
        if one.at_ns > fault_ns and one.generation > last:
            first.setdefault(one.rank, one)
    if len(first) < world:
        return None
    counted = sorted(first.values(), key=lambda one: one.at_ns)[:world]
    kept = {(draw.pid, draw.step + 1) for draw in events.draws if draw.at_ns <= fault_ns}
    kept -= {(draw.pid, draw.step + 1) for draw in events.draws if draw.at_ns > fault_ns}
    again = min((one.step for one in counted if (one.pid, one.step) not in kept), default=done + 1)
    return Resumed(counted[-1].generation, counted[-1].at_ns, max(0, done + 1 - again))


@dataclass(frozen=True, slots=True)
class ChangeOver:
    """The first step that all ranks have applied in a later generation than the one before.

    ``gap_ms``: since all ranks had applied a step the last time, which was ``steps`` steps before.
    """

    step: int
    generation: int
    steps: int
    gap_ms: float


def changes_over(events: Events, world: int) -> tuple[list[ChangeOver], float]:
    """Each step that began a generation after the first, and the median time of all other steps.

    A step counts when all of ``world`` ranks have applied it, for the first time. After a planned
    move it is the second one of its generation: the step before has no commit of a rank that moves.
    The old process leaves before it applies that step, and the new one copies the state after it.
    Those that stay record their commit of it when they have changed over. Raises
    ``StatisticsError`` where there are no other steps.
    """
    first: dict[int, dict[int, Commit]] = defaultdict(dict)
    for one in events.commits:
        first[one.step].setdefault(one.rank, one)
    whole = {step: ranks for step, ranks in first.items() if len(ranks) == world}
    found: list[ChangeOver] = []
    others: list[float] = []
    for step, ranks in sorted(whole.items()):
        steps = 1 if step - 1 in whole else 2
        before = whole.get(step - steps)
        if before is None or (steps == 2 and not _has_moved(before, first[step - 1], ranks)):
            continue
        gap_ms = (_applied_ns(ranks.values()) - _applied_ns(before.values())) / 1e6
        generation = max(one.generation for one in ranks.values())
        if generation > max(one.generation for one in before.values()):
            found.append(ChangeOver(step, generation, steps, gap_ms))
        else:
            others.append(gap_ms)
    return found, median(others)


def _has_moved(
    before: Mapping[int, Commit], between: Mapping[int, Commit], after: Mapping[int, Commit]
) -> bool:
    """Each rank without a commit ``between`` is another process's since, in a later generation."""
    return all(
        before[rank].pid != after[rank].pid and before[rank].generation < after[rank].generation
        for rank in after.keys() - between.keys()
    )


def _applied_ns(commits: Iterable[Commit]) -> int:
    return max(one.at_ns for one in commits)


def wrong_samples(
    events: Events, expected: Mapping[tuple[int, int], tuple[int, ...]]
) -> tuple[int, int]:
    """Batches that were dropped (or were others), and batches that counted twice.

    ``expected`` has the samples of each (rank, step) of an undisturbed job.
    """
    counted = {(draw.rank, draw.step): draw.samples for draw in events.draws}
    dropped = sum(counted.get(key) != samples for key, samples in expected.items())
    dropped += len(counted.keys() - expected.keys())
    last_draw = {(draw.rank, draw.step): draw.at_ns for draw in events.draws}
    seen: set[tuple[int, int]] = set()
    doubled = 0
    for commit in events.commits:
        key = commit.rank, commit.step - 1
        # An attempt after a commit of that step would apply these samples a second time.
        doubled += key in seen or last_draw.get(key, 0) > commit.at_ns
        seen.add(key)
    return dropped, doubled


def wrong_states(events: Events, reference: Events) -> list[tuple[int, int]]:
    """(rank, applied steps) whose state is not that of the reference, or is not in it."""
    return sorted(
        key for key, digests in events.states.items() if digests != reference.states.get(key)
    )


def merge_steps(events: Iterable[Events]) -> list[int]:
    """Steps after which any process hashed its state."""
    return sorted({step for one in events for _, step in one.states})
