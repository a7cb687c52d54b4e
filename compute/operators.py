"""What operators want, from files of this host and from the stop message, told to the core."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from compute.config import Config
from compute.core import Core, Mode
from compute.intake import UNSEEN_S
from compute.operator_files import (
    CONFIRMED_S,
    read_confirmed,
    read_drained,
    read_mode,
    read_stop,
    write_confirmed,
)
from telemetry.messages.documents import Stop


class OperatorWatch:
    """Tells the core about each change, once.

    Attributes:
        mode: as promoted.
        stopped: by the stop file or by a message.
    """

    def __init__(
        self,
        config: Config,
        core: Core,
        note: Callable[[str, dict[str, Any]], None],
        hosts: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Nothing is read yet.

        Args:
            config: names the files.
            core: is told what they say.
            note: records what an operator did: (kind, fields).
            hosts: the hosts that the broker knows of, as far as it has said yet.
        """
        self.mode: Mode = "observe"
        self.stopped = False
        self._config, self._core, self._note = config, core, note
        self._file_stop: tuple[bool, str] = (False, "")
        self._told: tuple[bool, str] | None = None
        self._maintenance: tuple[str, ...] = ()
        self._drained: dict[str, str] = {}
        self._problems: dict[str, str] = {}
        self._hosts = hosts
        self._hosts_since: float | None = None
        """Since when the broker has named hosts; None: it has named none."""
        self._log = structlog.get_logger()

    def look(self, now: float, wall: datetime) -> None:
        """Look at the files. ``now``: monotonic seconds; ``wall`` has a zone."""
        self._look_at_mode(now)
        self._look_at_drained(now)
        self._take_confirmed(now, wall)
        hosts = self._config.in_maintenance(wall)
        if hosts != self._maintenance:
            self._maintenance = hosts
            self._core.set_maintenance(hosts, now)
            self._note("maintenance", {"hosts": list(hosts)})
        self._file_stop = read_stop(Path(self._config.stop_file))
        self._name_unknown(now)

    def _name_unknown(self, now: float) -> None:
        """Say which hosts an operator named that there are not: a slip drains nobody, for good."""
        hosts = self._hosts()
        if not hosts or self._hosts_since is None:
            self._hosts_since = now if hosts else None
            return
        if now - self._hosts_since < UNSEEN_S:
            return  # the broker may not have sent all of them yet
        to = {host for host in self._drained.values() if host}
        for what, named in (
            ("drained", {*self._drained}), ("to take over", to),
            ("in maintenance", {*self._maintenance}),
        ):  # fmt: skip
            unknown = ", ".join(sorted(named - set(hosts)))
            text = "an operator named hosts that the broker does not know"
            self._complain(f"hosts {what}", unknown and f"{what}: {unknown}", text)

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

    def _take_confirmed(self, now: float, wall: datetime) -> None:
        """Each confirmed loss counts once, for the agents that are known of the host then."""
        path = self._config.confirmed_path
        try:
            confirmed = read_confirmed(path)
        except (OSError, ValueError) as error:
            self._complain("confirmed", f"{path}: {error}", "confirmed losses cannot be read")
            return
        waiting = {}
        for host, said in confirmed.items():
            problem = ""
            if said.what == "repaired":
                self._core.confirm_repaired(host, now)
            elif said.what == "broken":
                problem = self._core.confirm_broken(host, said.ranks, said.reason, now)
            else:
                problem = self._core.confirm_lost(host, said.reason, now)
            age = wall.timestamp() - said.at
            if problem and abs(age) <= CONFIRMED_S:
                waiting[host] = said
                text = f"what is confirmed of a host is not taken yet: {said.what}"
                self._complain(f"confirmed {host}", problem, text)
                continue
            problem = problem and f"{problem}; {age:.0f} s old, and dropped"
            fields: dict[str, Any] = {"host": host, "reason": said.reason, "problem": problem}
            if said.what == "broken":
                fields["ranks"] = list(said.ranks)
            self._note(f"confirm_{said.what}", fields)
        if waiting != confirmed:
            try:
                write_confirmed(path, waiting)
            except OSError as error:
                self._complain("confirmed", f"{path}: {error.strerror}", "it stays in the file")

    def _complain(self, what: str, problem: str, text: str) -> None:
        """Log a problem with a file once."""
        if problem and self._problems.get(what) != problem:
            self._log.error(text, error=problem)
        self._problems[what] = problem
