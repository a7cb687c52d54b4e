"""One process of this host, as its agent knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from fabric_train.agent.hangs import Stillness
from fabric_train.messages.documents import ProcessState
from fabric_train.messages.step_window import StepWindow


@dataclass
class KnownProcess:
    """What its agent knows of it. Fields are as in `ProcessState`."""

    name: str
    standby: bool
    round: int
    joined: bool = False
    welcomed: bool = False
    layout: str | None = None
    software: dict[str, str] = field(default_factory=dict)
    ended: str | None = None
    killed_for: str = ""
    acknowledged: int = 0
    recovered: int = 0
    committed: int = 0
    step: int = 0
    finished: int | None = None
    collectives: int = 0
    window: StepWindow | None = None
    still: Stillness = field(default_factory=Stillness)

    def state(self) -> ProcessState:
        """As it stands in the document."""
        if self.ended is not None:
            state = "ended"
        elif self.layout is not None:
            state = "warm"
        else:
            state = "joined" if self.joined else "starting"
        return ProcessState(
            self.name, state, self.standby, self.layout, self.software, self.ended or "",
            self.acknowledged, self.recovered, self.committed, self.step, self.finished,
            self.collectives, self.window, self.still.still, self.still.frozen,
        )  # fmt: skip
