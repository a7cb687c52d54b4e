"""How many hosts may be fenced, and which losses blame a switch instead."""

from __future__ import annotations

from collections.abc import Mapping

from compute.decide.policy import Policy


class FenceBudget:
    """Counts fences over a sliding window. Fences alone are limited, nothing that helps a host."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._fenced: dict[str, float] = {}
        self._suspected: dict[str, float] = {}

    def spent(self, host: str, now: float) -> None:
        """A fence of ``host`` was issued."""
        self._fenced[host] = now

    def refusal(
        self, lost: Mapping[str, str], racks: Mapping[str, str], hosts: int, now: float
    ) -> dict[str, str]:
        """Of the ``lost`` hosts those that must not be fenced now → why.

        ``lost``: host → evidence. ``racks``: host → rack, "" where it is not known.
        """
        policy = self._policy
        self._suspected = {
            host: at for host, at in self._suspected.items() if now - at <= policy.rack_window_s
        } | {host: self._suspected.get(host, now) for host in lost}
        refused: dict[str, str] = {}
        for host in sorted(lost):
            rack = racks.get(host, "")
            together = sorted(one for one in self._suspected if rack and racks.get(one) == rack)
            if len(together) >= policy.rack_hosts:
                refused[host] = (
                    f"{len(together)} hosts of rack {rack} are lost together "
                    f"({', '.join(together)}): its switch is to blame"
                )
        self._fenced = {
            host: at for host, at in self._fenced.items() if now - at <= policy.budget_window_s
        }
        share = int(hosts * policy.budget_percent / 100)
        left = min(policy.budget_most, max(policy.budget_least, share)) - len(self._fenced)
        for host in sorted(lost):
            if host in refused or host in self._fenced:
                continue
            if left <= 0:
                refused[host] = (
                    f"{len(self._fenced)} hosts were fenced within {policy.budget_window_s:g} s: "
                    f"no more of {hosts} hosts are allowed to be"
                )
            left -= 1
        return refused
