"""What `fabricd.detect.locate` has not explained yet, and how well a cause explains it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import copy

from fabricd.detect.causes import Cause, Port, Rules


class Unexplained:
    """What is still unexplained, and how well a cause explains it."""

    def __init__(
        self, columns: list[list[float]], dark: set[Port], lit: set[Port], rules: Rules
    ) -> None:
        """``columns``: for each rate that a cause may fail at, the ratio of each flow."""
        self.columns, self.dark, self.lit, self.rules = columns, dark, lit, rules
        rows = list(zip(*columns, strict=True))
        self.most = [max(row) for row in rows]
        """The ratio of each flow at the rate that fits it best."""
        self.fitting = [row.index(most) for row, most in zip(rows, self.most, strict=True)]
        self.tables: dict[tuple[int, float], list[float]] = {}
        self.fits: dict[int, tuple[float, int]] = {}

    def bad(self) -> list[int]:
        """Flows that are worth an explanation."""
        return [i for i, ratio in enumerate(self.most) if ratio >= self.rules.bad]

    def of(self, cause: Cause) -> float:
        """Logarithm of prior times likelihood, against "nothing fails"."""
        rules = self.rules
        score = math.log(cause.prior) + self._fit(cause)[0]
        if cause.ports:
            score += math.log(rules.dark / rules.dark_alone) * len(cause.ports & self.dark)
            score += math.log(1 - rules.dark) * len(cause.ports & self.lit)
        return score

    def explained(self, cause: Cause) -> set[int | Port]:
        """Bad flows and dark ports that a cause explains at the rate that fits it best."""
        column = self.columns[self._fit(cause)[1]]
        return {i for i in cause.flows if column[i] >= self.rules.bad} | (cause.ports & self.dark)

    def gain(self, one: int | Port) -> float:
        """What a flow or a dark port adds to the score of a cause at most."""
        if isinstance(one, int):
            return max(0.0, _shown(self.most[one], self.rules.shows))
        return math.log(self.rules.dark / self.rules.dark_alone)

    def within(self, cause: Cause) -> Unexplained:
        """Without what is bad or dark beside the reach of a cause."""
        out, inside = self._copy(self.dark & cause.ports), set(cause.flows)
        out.excuse(i for i in self.bad() if i not in inside)
        return out

    def without(self, cause: Cause, explained: Iterable[int | Port]) -> Unexplained:
        """What is left when a cause is found: what it explains accuses nobody else."""
        out = self._copy(self.dark - cause.ports)
        out.excuse(i for i in explained if isinstance(i, int))
        return out

    def excuse(self, flows: Iterable[int]) -> None:
        """These flows accuse nobody any more."""
        for i in flows:
            for column in self.columns:
                column[i] = min(column[i], 0.0)
            for table in self.tables.values():
                table[i] = min(table[i], 0.0)
            self.most[i] = min(self.most[i], 0.0)
        self.fits.clear()

    def _copy(self, dark: set[Port]) -> Unexplained:
        out = copy(self)
        out.columns, out.most = [list(column) for column in self.columns], list(self.most)
        out.tables = {key: list(table) for key, table in self.tables.items()}
        out.dark, out.fits = dark, {}
        return out

    def _fit(self, cause: Cause) -> tuple[float, int]:
        """The best sum over its flows, and which rate makes it: one that is some flow's own."""
        if (key := id(cause)) not in self.fits:  # Each cause outlives what it is asked about.
            shows = self.rules.shows
            shares = (0.125, 0.25, 0.5, shows) if cause.partial else (shows,)
            columns = {self.fitting[i] for i in cause.flows if self.most[i] > 0} or {0}
            best = max((self._sum(cause, at, share), at) for at in columns for share in shares)
            self.fits[key] = best[0] - math.log(len(shares) * len(self.columns)), best[1]
        return self.fits[key]

    def _sum(self, cause: Cause, column: int, share: float) -> float:
        key = (column, share)
        if key not in self.tables:
            self.tables[key] = [_shown(ratio, share) for ratio in self.columns[column]]
        table = self.tables[key]
        return sum([table[i] for i in cause.flows])


def _shown(ratio: float, share: float) -> float:
    return math.log(share * math.exp(ratio) + 1 - share) if ratio else 0.0
