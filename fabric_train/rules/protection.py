"""The protection report of a job: what is protected, by whom, and what is not. Pure.

A process says what it has given to ``protect`` and what it has found besides (``unprotected``); its
agent knows on which hosts the ranks and their buddies are. A report is made of both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

_REPLICATED = "replicated/"
_SHARDED = "sharded/"
_LOCAL = "local/"
_UNPROTECTED = "unprotected/"


@dataclass(frozen=True)
class Placement:
    """Where a job is. ``hosts[r]`` has rank ``r``; ``buddies`` keep a host's rank-local state.

    ``spare_hosts`` have no rank. ``warm``: processes of this host that wait for one.
    """

    job: str
    hosts: Sequence[str]
    buddies: Mapping[str, Sequence[str]]
    spare_hosts: Sequence[str]
    warm: int


@dataclass(frozen=True)
class Protection:
    """What of a job survives which loss.

    ``replicated``: parts by name, each with a copy on every rank; ``sharded``: with copies of a
    rank's shards on some, of which the text names those of one rank. ``local``: what differs
    between ranks; it is kept on ``buddies[host]`` for those of ``host``. ``ranks``: of each host.
    ``unprotected``: what a takeover does not restore. ``warnings``: what it cannot or may not do.
    """

    job: str
    ranks: dict[str, list[int]]
    replicated: dict[str, str]
    local: dict[str, str]
    buddies: dict[str, list[str]]
    unprotected: list[str]
    warnings: list[str]
    sharded: dict[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """JSON, for ``decode`` and for a file."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def decode(cls, text: bytes) -> Protection:
        """What ``encode`` gave."""
        return cls(**json.loads(text))

    def lines(self) -> list[str]:
        """In words, for people."""
        world = sum(map(len, self.ranks.values()))
        where = f"{world} ranks on {len(self.ranks)} host{'s' * (len(self.ranks) != 1)}"
        if len(self.ranks) <= _NAMED:
            where += f" ({', '.join(self.ranks)})"
        found = []
        if self.replicated:
            found.append(f"protected, as a replica on each of {where}:")
            found += [f"  {name}: {text}" for name, text in self.replicated.items()]
        if self.sharded:
            found.append(f"protected, as shards of {where}, each on several of them:")
            found += [f"  {name}: {text}" for name, text in self.sharded.items()]
        kept = "with fabric-run of this machine"
        if any(self.buddies.values()):
            kept = "on the next two hosts with ranks: " + "; ".join(
                f"of {host} on {' and '.join(on)}"
                for host, on in list(self.buddies.items())[:_NAMED]
            )
            kept += "; …" * (len(self.buddies) > _NAMED)
        found.append(f"protected, rank-local state, kept {kept}:")
        found += [f"  {name}: {text}" for name, text in self.local.items()]
        found += [f"UNPROTECTED: {text}" for text in self.unprotected]
        return found + [f"warning: {text}" for text in self.warnings]


_NAMED = 8  # hosts that are named


def statement(
    replicated: Mapping[str, str],
    local: Mapping[str, str],
    unprotected: Sequence[str],
    sharded: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """What one process says of its state, for ``protection``."""
    return {
        **{f"{_REPLICATED}{name}": text for name, text in replicated.items()},
        **{f"{_SHARDED}{name}": text for name, text in (sharded or {}).items()},
        **{f"{_LOCAL}{name}": text for name, text in local.items()},
        **{f"{_UNPROTECTED}{place:03}": text for place, text in enumerate(unprotected)},
    }


def protection(said: Mapping[str, str], placement: Placement) -> Protection:
    """The report of a job at ``placement`` whose processes have given the statement ``said``."""
    ranks: dict[str, list[int]] = {}
    for rank, host in enumerate(placement.hosts):
        ranks.setdefault(host, []).append(rank)
    unprotected = list(_below(said, _UNPROTECTED).values())
    warnings = []
    if len(placement.hosts) == 1:
        unprotected.insert(0, "all state: the job has one rank, so there is no replica")
    elif len(ranks) == 1:
        unprotected.insert(0, f"all state against the loss of {next(iter(ranks))}: all is there")
    if not placement.spare_hosts and not placement.warm:
        warnings.append(
            "no spare: after a loss the ranks wait until a new process has built its model"
        )
    elif not placement.spare_hosts and len(ranks) > 1:
        warnings.append("no spare host: after the loss of a host the ranks wait until one joins")
    if len(ranks) == 2 and not placement.spare_hosts:
        warnings.append(
            "two hosts: a majority of two is both of them, so the loss of one cannot be decided"
        )
    return Protection(
        placement.job,
        ranks,
        _below(said, _REPLICATED),
        _below(said, _LOCAL),
        {host: list(placement.buddies.get(host, ())) for host in ranks},
        unprotected,
        [] if len(placement.hosts) == 1 else warnings,
        _below(said, _SHARDED),
    )


def _below(said: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        name.removeprefix(prefix): text for name, text in said.items() if name.startswith(prefix)
    }
