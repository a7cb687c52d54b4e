"""What the overrides in force change for the engine. Pure.

* Drained: as if an administrator had taken the link down: no failure, no penalty, no weight.
* Planned (a maintenance window): soft evidence changes nothing, and no carrier loss or verdict adds
  to the damping penalty or to the flaps that the operator is told about. Hard evidence still
  steers: the job must not pay for the work on its cables. Flaps are counted as ever.
* A detector that is off: see `fabricd.operate.detectors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fabricd.detect.verdict import Verdict
from fabricd.links.health import Facts


@dataclass(frozen=True, slots=True)
class EffectiveOverrides:
    """The overrides as the engine applies them."""

    drained: Mapping[str, str] = field(default_factory=dict)
    """Netdev → what to say about it."""
    planned: frozenset[str] = frozenset()
    """Netdevs in a maintenance window."""
    off: frozenset[str] = frozenset()
    """Detectors."""

    def verdict(self, verdict: Verdict) -> Verdict:
        """Without what comes from detectors that are off."""
        return replace(
            verdict,
            link_faults={} if "probe-link" in self.off else verdict.link_faults,
            link_suspects={} if "probe-doubt" in self.off else verdict.link_suspects,
            path_faults={} if "probe-path" in self.off else verdict.path_faults,
        )

    def worse(self, netdev: str, worse: str) -> str:
        """Why a link should be DEGRADED, or nothing."""
        return "" if "loss" in self.off or netdev in self.planned else worse

    def mtu(self, netdev: str, hole: str) -> str:
        """Why large packets take a link or path down, or nothing."""
        return "" if "mtu" in self.off or netdev in self.planned else hole

    def soft(self, netdev: str, errors: str) -> str:
        """What soft counters say against a link, or nothing."""
        return "" if "counters" in self.off or netdev in self.planned else errors

    def foretells(self, netdev: str) -> bool:
        """Whether the failure forecast may lower a link's weight."""
        return "prediction" not in self.off and netdev not in self.planned

    def carrier(self, carrier: bool | None) -> bool | None:
        """The carrier to judge by."""
        return True if "carrier" in self.off else carrier

    @property
    def uses_links(self) -> bool:
        """Whether what probes say of a whole link matters, also for its way back."""
        return "probe-link" not in self.off

    @property
    def uses_paths(self) -> bool:
        """Whether what probes say of one path alone matters, also for its way back."""
        return "probe-path" not in self.off

    @property
    def uses_rdma(self) -> bool:
        """Whether what RDMA probes say of RDMA matters."""
        return "probe-rdma" not in self.off

    @property
    def uses_ports(self) -> bool:
        """Whether a verbs port that is not active takes its link down."""
        return "port" not in self.off

    def facts(self, netdev: str, facts: Facts) -> Facts:
        """What is left of a link's facts."""
        if "carrier" in self.off:
            facts = replace(facts, downs=0)
        if "counters" in self.off:
            facts = replace(facts, hard_fault="")
        if netdev in self.planned:
            facts = replace(facts, suspect="", planned=True)
        if netdev in self.drained:
            facts = replace(facts, admin_up=False, drained=self.drained[netdev])
        return facts
