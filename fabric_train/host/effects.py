"""What a host's core is set up with, and what it wants done: its effects, for the shell.

``Spawn``, ``Kill`` and ``ReleaseAll`` are those of the standalone ``coordinator``.
"""

from __future__ import annotations

from dataclasses import dataclass

from fabric_train.host.job_key import JobKey
from fabric_train.messages.documents import JobGeneration
from fabric_train.rules.coordinator import Kill, ReleaseAll, Spawn
from fabric_train.rules.limits import FROZEN_S


@dataclass(frozen=True)
class Setup:
    """One run of fabric-run on one host; the fields are those of ``AgentDocument``.

    ``hang_s`` and ``frozen_s`` are those of `HangWatch`. ``key``: the job's, if it has one.
    """

    job: str
    host: str
    incarnation: str
    nodes: int
    spares: int
    nproc: int
    standby: int
    address: str
    store: str
    token: str
    node_rank: int | None = None
    hang_s: float | None = None
    key: JobKey | None = None
    frozen_s: float = FROZEN_S

    @property
    def world(self) -> int:
        """Ranks of the job."""
        return self.nodes * self.nproc


@dataclass(frozen=True)
class Greet:
    """Answer the ``Hello`` of ``process``."""

    process: str
    spare: bool


@dataclass(frozen=True)
class Start:
    """``generation`` is running here from now on; its processes have been told."""

    generation: JobGeneration


@dataclass(frozen=True)
class Assign:
    """Tell ``process`` its place in ``generation``."""

    process: str
    generation: JobGeneration


@dataclass(frozen=True)
class End:
    """This fabric-run ends: well when ``reason`` is empty. ``at_once``: by SIGKILL."""

    reason: str = ""
    at_once: bool = False


@dataclass(frozen=True)
class Note:
    """A line for people."""

    text: str


Effect = Spawn | Kill | ReleaseAll | Greet | Start | Assign | End | Note
