"""One rank that only sums, as fast as it can, and says where a result is wrong.

Each sum has numbers of its own, known to both ranks, so it is checked on the device and a wrong
number tells which sum it is left from. Command line and rows are those of :mod:`lab.gpu.worker`;
``wrong`` rows have the runs of wrong numbers. A line of LL128 holds 30 numbers of 4 bytes: runs of
exactly 14 or 16 are halves of lines, seen before their other half had arrived.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from lab.gpu.worker import Ranks, serve

SIZES = (16_384, 4 << 20)
"""Numbers of 4 bytes in each sum: 64 KiB and 16 MiB in turn."""
_STEP = (7_919, 104_729)
"""What a rank adds to each of its numbers from sum to sum."""
_REPORTED = 20
"""Wrong sums that are described; all are counted."""


class Sums:
    """Numbers put in and expected, on the device."""

    def __init__(self, ranks: Ranks) -> None:
        torch = self._torch = ranks.torch
        self._ranks = ranks
        self._base = [
            torch.randint(
                -(1 << 30), 1 << 30, (max(SIZES),), dtype=torch.int32,
                generator=torch.Generator(device="cpu").manual_seed(rank),
            ).to(ranks.device)
            for rank in range(2)
        ]  # fmt: skip

    def play(self, number: int) -> dict[str, object] | None:
        """One sum; a row of what is wrong with it, or None."""
        size = SIZES[number % len(SIZES)]
        data = self._put_in(self._ranks.rank, number, size)
        self._ranks.dist.all_reduce(data)
        want = self._put_in(0, number, size) + self._put_in(1, number, size)
        if self._torch.equal(data, want):
            return None
        return self._describe(number, data, want)

    def _put_in(self, rank: int, number: int, size: int) -> Any:
        return self._base[rank][:size] + number * _STEP[rank] % (1 << 31)

    def _describe(self, number: int, data: Any, want: Any) -> dict[str, object]:
        places = (data != want).nonzero().flatten().cpu().tolist()
        runs: list[list[int]] = []
        for place in places:
            if runs and place == sum(runs[-1]):
                runs[-1][1] += 1
            else:
                runs.append([place, 1])
        samples = [
            {"place": place, "got": int(data[place]), "want": int(want[place]),
             "numbers": [int(self._base[rank][place]) for rank in range(2)]}
            for place, _ in runs[:4]
        ]  # fmt: skip
        return {
            "type": "wrong", "sum": number, "size": len(data), "numbers": len(places),
            "runs": runs[:50], "samples": samples,
        }  # fmt: skip


def play(
    ranks: Ranks, args: argparse.Namespace, write: Callable[[dict[str, object]], None]
) -> None:
    """Sums until the time is over, the first two before the faults may begin."""
    sums = Sums(ranks)
    number = wrong = 0
    until = 0.0
    while True:
        for _ in range(2 * len(SIZES)):
            row = sums.play(number)
            number += 1
            if row is not None:
                wrong += 1
                if wrong <= _REPORTED:
                    write(row)
        if until == 0.0:
            write({"type": "ready"})
            while not args.go.exists():
                time.sleep(0.01)
            until = time.monotonic() + args.seconds
        if not ranks.agree(time.monotonic() < until):
            break
    write({"type": "end", "rounds": number, "wrong": wrong})


if __name__ == "__main__":
    sys.exit(serve(play))
