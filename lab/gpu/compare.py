"""Are the results of a disturbed run those of an undisturbed one, bit for bit? Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.gpu.plan import STEPS, WORLD

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Verdict:
    """``compared`` results of all ranks were looked at; ``wrong`` says what is not right."""

    compared: int
    wrong: tuple[str, ...]


def _results(rows: Sequence[Row]) -> dict[tuple[int, int], str]:
    found = {}
    for row in rows:
        if row.get("type") == "result":
            number, step = row["round"], row["step"]
            assert isinstance(number, int)
            assert isinstance(step, int)
            found[number, step] = str(row["sha256"])
    return found


def _complete(rows: Sequence[Row], who: str) -> list[str]:
    wrong = [f"{who}: {row['text']}" for row in rows if row.get("type") == "error"]
    ends = [row for row in rows if row.get("type") == "end"]
    if not ends:
        return wrong or [f"{who}: did not end"]
    rounds = ends[0]["rounds"]
    assert isinstance(rounds, int)
    have = _results(rows)
    lost = [key for key in _keys(rounds) if key not in have]
    return wrong + [f"{who}: no result of round {r}, {STEPS[s].name}" for r, s in lost]


def _keys(rounds: int) -> list[tuple[int, int]]:
    return [(number, step) for number in range(rounds) for step in range(len(STEPS))]


def compare(
    reference: Sequence[Sequence[Row]], disturbed: Sequence[Sequence[Row]], *, rounds: int
) -> Verdict:
    """Every result of the disturbed run with the reference's of the same inputs.

    Args:
        reference: rows of each rank, without faults.
        disturbed: rows of each rank, with them.
        rounds: after so many rounds the inputs begin again.
    """
    wrong: list[str] = []
    compared = 0
    for rank in range(WORLD):
        for rows, name in ((reference[rank], "reference"), (disturbed[rank], "disturbed")):
            wrong += _complete(rows, f"{name}, rank {rank}")
        want = _results(reference[rank])
        for (number, step), digest in sorted(_results(disturbed[rank]).items()):
            asked = want.get((number % rounds, step))
            if asked is None:
                wrong.append(f"rank {rank}: the reference has no round {number % rounds}")
                continue
            compared += 1
            if digest != asked:
                wrong.append(f"rank {rank}: round {number}, {STEPS[step].name}: other bits")
    if compared == 0:
        wrong.append("nothing was compared")
    # The sum is the same on both ranks.
    for step, what in enumerate(STEPS):
        if what.operation == "all_reduce":
            sums = {_results(rows).get((0, step)) for rows in reference}
            if len(sums) != 1:
                wrong.append(f"reference: the ranks differ after {what.name}")
    return Verdict(compared, tuple(wrong))
