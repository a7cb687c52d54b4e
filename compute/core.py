"""What the service asks of a decision core. ``compute.decide.decider.Decider`` is the real one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, Protocol

from compute.decide.effects import Effect
from fabric_train.messages.documents import AgentDocument
from telemetry.messages.documents import (
    Fence,
    HostDocument,
    HostJob,
    HostObservations,
    HostStatus,
)
from telemetry.messages.envelope import Sender

Mode = Literal["observe", "migrate"]


class Core(Protocol):
    """Inputs return nothing; ``decide`` follows. ``now``: monotonic seconds of this process."""

    def restore(self, fences: list[Fence], now: float) -> None:
        """Fences of an earlier life, before any message."""

    def set_mode(self, mode: Mode, now: float) -> None:
        """What may be done."""

    def set_maintenance(self, hosts: Collection[str], now: float) -> None:
        """Over these hosts nothing is decided."""

    def drain(self, host: str, now: float, *, to: str = "") -> None:
        """Move the ranks of ``host`` to a spare, to ``to`` if it is given."""

    def undrain(self, host: str, now: float) -> None:
        """``host`` may hold ranks again."""

    def confirm_lost(self, host: str, reason: str, now: float) -> str:
        """``host`` is known to be off. Returns why that is not taken, or ""."""

    def confirm_broken(self, host: str, ranks: Collection[int], reason: str, now: float) -> str:
        """Places of ``ranks`` on ``host`` are broken. Returns why that is not taken, or ""."""

    def confirm_repaired(self, host: str, now: float) -> None:
        """Places of ranks on ``host`` that were left out may be used again."""

    def stop(self, stopped: bool, reason: str, now: float) -> None:
        """While ``stopped`` nothing new is done."""

    def host_status(self, host: str, sender: Sender, status: HostStatus, now: float) -> None:
        """Birth, goodbye or last will."""

    def host_observations(
        self, host: str, sender: Sender, observations: HostObservations, now: float
    ) -> None:
        """What a host's probes say."""

    def host_document(self, host: str, document: HostDocument | None, now: float) -> None:
        """Who a host is; None: taken away."""

    def host_job(
        self,
        host: str,
        job: str,
        news: HostJob | None,
        now: float,
        *,
        document: AgentDocument | None = None,
    ) -> None:
        """What fabric-run says of a job; None: taken away. ``document``: its, parsed."""

    def job_of(self, host: str, job: str) -> str:
        """What the job is called of which ``host`` has a document under this name; "": none."""

    def name_of(self, job: str) -> str:
        """What the hosts of a job call it."""

    def is_home(self, host: str, job: str) -> bool:
        """``host`` has no document of another job with the same name."""

    @property
    def pending(self) -> bool:
        """Something came after the last ``decide`` from which more may follow."""

    @property
    def faults(self) -> int:
        """Errors of its own, each of which held one job."""

    @property
    def urgent(self) -> bool:
        """What is pending speaks against a host."""

    def decide(self, now: float) -> Sequence[Effect]:
        """What follows from everything so far."""

    def wake_at(self) -> float | None:
        """When ``decide`` is due without news."""
