"""The detectors that run outside the engine and report to it."""

from __future__ import annotations

from dataclasses import dataclass

from fabricd.delay.watch import DelayWatch
from fabricd.detect.localization import Localization
from fabricd.detect.loss import LossTest
from fabricd.links.interfaces import InterfaceWatch
from fabricd.probes.monitor import ProbeMonitor


@dataclass(frozen=True, slots=True)
class Detectors:
    """Each detector owns its state.

    Attributes:
        losses: which links and paths lose too many probes.
        localization: where faults are.
        delay: queueing, slow rails.
        probing: how well probes watch the links; MTU black holes.
        interfaces: configured interfaces that the host does not have.
    """

    losses: LossTest
    localization: Localization
    delay: DelayWatch
    probing: ProbeMonitor
    interfaces: InterfaceWatch
