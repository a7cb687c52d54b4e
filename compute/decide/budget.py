"""How many hosts may be fenced, and which losses blame a switch instead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from compute.decide.policy import Policy

ALL = ""
"""Whose the fences are that rest on more than the word of one user's jobs."""


class FenceBudget:
    """Counts fences over a sliding window. Fences alone are limited, nothing that helps a host.

    A loss that nobody but a job's own agents tells of is a *claim* of that job's user, who can make
    as many as it likes: it counts for fences of that user's claims alone.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._fenced: defaultdict[str, dict[str, float]] = defaultdict(dict)
        """User, or `ALL` → host → when it was fenced last."""
        self._suspected: dict[str, float] = {}

    def spent(self, host: str, now: float, user: str = ALL) -> None:
        """A fence of ``host`` was issued, by a claim of ``user``, if one is named."""
        self._fenced[user][host] = now

    def refusal(
        self,
        lost: Mapping[str, str],
        racks: Mapping[str, str],
        hosts: int,
        now: float,
        claims: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """Of the ``lost`` hosts those that must not be fenced now → why.

        ``lost``: host → evidence. ``racks``: host → rack, "" where it is not known. ``claims``:
        host → user, of those that are lost by the word of that user's jobs alone.
        """
        policy, claims = self._policy, claims or {}
        seen = [host for host in lost if host not in claims]
        self._suspected = {
            host: at for host, at in self._suspected.items() if now - at <= policy.rack_window_s
        } | {host: self._suspected.get(host, now) for host in seen}
        refused: dict[str, str] = {}
        for host in sorted(seen):
            rack = racks.get(host, "")
            together = sorted(one for one in self._suspected if rack and racks.get(one) == rack)
            if len(together) >= policy.rack_hosts:
                refused[host] = (
                    f"{len(together)} hosts of rack {rack} are lost together "
                    f"({', '.join(together)}): its switch is to blame"
                )
        for user in list(self._fenced):
            self._fenced[user] = {
                host: at
                for host, at in self._fenced[user].items()
                if now - at <= policy.budget_window_s
            }
            if not self._fenced[user]:
                del self._fenced[user]
        for user in sorted({claims.get(host, ALL) for host in lost}):
            mine = [host for host in sorted(lost) if claims.get(host, ALL) == user]
            refused |= self._over(user, [host for host in mine if host not in refused], hosts)
        return refused

    def _over(self, user: str, lost: list[str], hosts: int) -> dict[str, str]:
        """Of hosts that are ``lost`` in ``user``'s account those beyond what is left there."""
        policy = self._policy
        fenced = self._fenced.get(user, {})
        share = int(hosts * policy.budget_percent / 100)
        left = min(policy.budget_most, max(policy.budget_least, share)) - len(fenced)
        whose = f" by what the jobs of uid {user} alone say" if user != ALL else ""
        return {
            host: f"{len(fenced)} hosts were fenced within {policy.budget_window_s:g} s{whose}: "
            f"no more of {hosts} hosts are allowed to be"
            for host in [one for one in lost if one not in fenced][max(left, 0) :]
        }
