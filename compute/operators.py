"""What operators want, from files of this host and from the stop message, told to the core."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from compute.config import Config
from compute.core import Core, Mode
from compute.operator_files import read_drained, read_mode, read_stop
from telemetry.messages.documents import Stop


class OperatorWatch:
    """Tells the core about each change, once.

    Attributes:
        mode: as promoted.
        stopped: by the stop file or by a message.
    """

    def __init__(
        self, config: Config, core: Core, note: Callable[[str, dict[str, Any]], None]
    ) -> None:
        """``note`` records what an operator did: (kind, fields)."""
        self.mode: Mode = "observe"
        self.stopped = False
        self._config, self._core, self._note = config, core, note
        self._file_stop: tuple[bool, str] = (False, "")
        self._told: tuple[bool, str] | None = None
        self._maintenance: tuple[str, ...] = ()
        self._drained: dict[str, str] = {}
        self._problems: dict[str, str] = {}
        self._log = structlog.get_logger()

    def look(self, now: float, wall: datetime) -> None:
        """Look at the files. ``now``: monotonic seconds; ``wall`` has a zone."""
        self._look_at_mode(now)
        self._look_at_drained(now)
        hosts = self._config.in_maintenance(wall)
        if hosts != self._maintenance:
            self._maintenance = hosts
            self._core.set_maintenance(hosts, now)
            self._note("maintenance", {"hosts": list(hosts)})
        self._file_stop = read_stop(Path(self._config.stop_file))

    def apply_stop(self, message: Stop, now: float) -> bool:
        """Stop, or go on, by file and message. Returns whether that has changed."""
        by_file, why = self._file_stop
        stopped = by_file or message.stopped
        said = (stopped, (why if by_file else message.reason) if stopped else "")
        if said == self._told:
            return False
        first, self._told, self.stopped = self._told is None, said, stopped
        self._core.stop(stopped, said[1], now)
        if stopped or not first:
            self._note("stop", {"stopped": stopped, "reason": said[1]})
        return True

    def _look_at_mode(self, now: float) -> None:
        mode, problem = read_mode(self._config.mode_path)
        self._complain("mode", problem, "the mode file cannot be used: observe")
        self._core.set_mode(mode, now)
        if mode != self.mode:
            before, self.mode = self.mode, mode
            self._note("mode", {"from": before, "to": mode})

    def _look_at_drained(self, now: float) -> None:
        path = self._config.drained_path
        try:
            drained = read_drained(path)
        except (OSError, ValueError) as error:
            text = "the hosts to be drained cannot be read: what was known stays"
            self._complain("drained", f"{path}: {error}", text)
            return
        self._complain("drained", "", "")
        for host in self._drained.keys() - drained.keys():
            self._core.undrain(host, now)
            self._note("undrain", {"host": host})
        for host, to in drained.items() - self._drained.items():
            self._core.drain(host, now, to=to)
            self._note("drain", {"host": host, "to": to})
        self._drained = drained

    def _complain(self, what: str, problem: str, text: str) -> None:
        """Log a problem with a file once."""
        if problem and self._problems.get(what) != problem:
            self._log.error(text, error=problem)
        self._problems[what] = problem
