"""Keeps the learnt rate while the service runs. The shell around `fabricd.clock.drift_file`."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import structlog

from clocksync.mesh.host import MeshHost
from clocksync.page.clock_page import State
from fabricd.clock.drift_file import Model, ModelError, RawClock, load, raw_clock, store

LEARNT_S = 60.0
"""So long the host has to be locked to others: what it has then is theirs too."""
STORE_S = 300.0


class RateKeeper:
    """One host's."""

    def __init__(self, directory: Path, work: RawClock | None = None) -> None:
        """Args: ``directory``: the host's state; ``work``: default: this boot's."""
        self._directory, self._work = directory, work or raw_clock()
        self._log = structlog.get_logger()
        self._locked_s: float | None = None
        self._stored_s = 0.0
        self._complaint = ""
        self._writing: threading.Thread | None = None

    def start(self, wall_s: float | None = None) -> float:
        """The rate to begin with; 0 when nothing (of use) was kept."""
        try:
            model = load(self._directory)
        except (ModelError, OSError) as error:
            self._log.warning("the clock's rate is not known", reason=str(error))
            return 0.0
        if model is None:
            return 0.0
        wall = time.time() if wall_s is None else wall_s
        rate = model.start(self._work, wall)
        self._log.info(
            "the clock's rate was kept", rate_ppm=round(model.rate * 1e6, 4), used=rate != 0.0,
            unsure_ppm=round(model.error(self._work, wall) * 1e6, 4),
        )  # fmt: skip
        return rate

    def look(self, core: MeshHost, now_s: float, wall_s: float | None = None) -> None:
        """Once a second: store what has been learnt, every five minutes.

        Args:
            core: its time is the fabric's while it is locked to others.
            now_s: CLOCK_MONOTONIC.
            wall_s: default: now.
        """
        status = core.status
        if status.state is not State.LOCKED or not status.neighbours:
            self._locked_s = None
            return
        self._locked_s = now_s if self._locked_s is None else self._locked_s
        if now_s - self._locked_s < LEARNT_S or (
            self._stored_s and now_s - self._stored_s < STORE_S
        ):
            return
        self._stored_s = now_s
        wall = time.time() if wall_s is None else wall_s
        model = Model(status.slope, wall, self._work.boot, self._work.steady)
        if self._writing is None or not self._writing.is_alive():
            # A disk may take seconds; the clock's steps do not wait for it.
            self._writing = threading.Thread(target=self._store, args=(model,), daemon=True)
            self._writing.start()

    def wait(self) -> None:
        """Until what is being stored is there."""
        if self._writing is not None:
            self._writing.join()

    def _store(self, model: Model) -> None:
        try:
            store(self._directory, model)
            self._complaint = ""
        except OSError as error:
            if self._complaint != str(error):
                self._complaint = str(error)
                self._log.warning("the clock's rate is not kept", reason=self._complaint)
