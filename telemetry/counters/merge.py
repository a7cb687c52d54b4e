"""One answer per counter where several sources of a link count the same thing. Pure.

Steps are merged, not absolute values: each source has its own zero. The owner of a counter is the
best source that is on and has shown it, so a source that is merely not due this time hands its
counter to nobody. A source that comes back says all that it counted meanwhile, of which another may
have told some already: that is taken off. So nothing counts double, and what nobody told is told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from telemetry.counters.tracker import Step, Update

PRECEDENCE = (
    "rdma_stat",  # with the counters of bound queue pairs
    "ib_hw",
    "ethtool_fec",
    "ethtool_pause",
    "ethtool_standard",  # what a name means is in a standard
    "ethtool_driver",
    "ib_port",  # narrow and saturating
    "link_stats",
)
"""Best first; a source that is not named comes last."""


class Merger:
    """Of one link."""

    def __init__(self) -> None:
        self._shown: dict[str, frozenset[str]] = {}
        self._on: frozenset[str] = frozenset()
        self._owners: dict[str, str] = {}
        self._told: dict[str, int] = {}
        self._told_ns: dict[str, int] = {}
        self._marks: dict[str, dict[str, int]] = {}
        """Source → counter → what was told of it up to the source's last reading of it."""

    def take(self, updates: Iterable[Update], on: Collection[str]) -> dict[str, Step]:
        """Merge what was read now.

        Args:
            updates: of the sources that were due.
            on: names of all sources that are on, due or not.
        """
        updates = list(updates)
        self._learn(updates, frozenset(on))
        told, owners = self._told, self._owners
        out: dict[str, Step] = {}
        for update in updates:
            source, at_ns = update.sample.source, update.sample.at_ns
            mark = self._marks.get(source, {})
            for name, step in update.steps.items():
                if owners.get(name) == source:
                    by_others = told.get(name, 0) - mark.get(name, 0)
                    out[name] = self._rest(name, step, by_others, at_ns) if by_others else step
                    self._told_ns[name] = at_ns
        for name, step in out.items():
            told[name] = told.get(name, 0) + step.increase
        for update in updates:
            mark = self._marks.setdefault(update.sample.source, {})
            for name in update.sample.values:
                mark[name] = told.get(name, 0)
        return out

    def owner(self, counter: str) -> str | None:
        """The source that speaks for a counter; None: no source that is on has it."""
        return self._owners.get(counter)

    def _rest(self, name: str, step: Step, by_others: int, at_ns: int) -> Step:
        interval = at_ns - self._told_ns.get(name, at_ns - step.interval_ns)
        increase = max(step.increase - by_others, 0)
        return step._replace(increase=increase, interval_ns=interval or step.interval_ns)

    def _learn(self, updates: Iterable[Update], on: frozenset[str]) -> None:
        news = on != self._on
        self._on = on
        for update in updates:
            source, values = update.sample.source, update.sample.values
            if source not in self._shown or self._shown[source] ^ values.keys():
                self._shown[source] = frozenset(values)
                news = True
        if news:
            best_last = sorted(on, key=_rank, reverse=True)
            self._owners = {
                counter: source for source in best_last for counter in self._shown.get(source, ())
            }


def _rank(source: str) -> tuple[int, str]:
    place = PRECEDENCE.index(source) if source in PRECEDENCE else len(PRECEDENCE)
    return place, source
