"""Reloads the configuration: reads it in a thread, applies it on the event loop.

One reload at a time. Requests that come meanwhile share one more reload, which reads the files
anew: the last state of the files wins.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from fabricd.config.loader import Config, ConfigError, Problem
from fabricd.config.netdev_names import kernel_name
from fabricd.config.peers_file import FileState, file_state
from fabricd.config.peers_watch import PeersWatch
from fabricd.config.source import Candidate, ConfigSource, Refusal
from fabricd.probes import plan
from fabricd.probes.peer_index import PeerIndex
from fabricd.process.blocking_call import BlockingCaller
from telemetry.events import EventKind
from telemetry.service.systemd_notify import Notifier

READ_S = 30.0
"""A reload is refused when the files cannot be read and validated in this time.

It is a thread of the real-time class, too. RLIMIT_RTTIME counts its time from its last blocking
call on, and it waits for Python's lock each time that the loop runs.
"""
LOOK_S = 1.0
ANSWER_S = 2.0
SAID = 50
"""Problems of one reload that are logged."""
WATCH = "peers_file changed"

Record = Callable[..., None]
Apply = Callable[[Config, Config, PeerIndex], None]


@dataclass(slots=True)
class _Request:
    by: list[str]
    done: asyncio.Future[list[str]]


@dataclass(slots=True)
class _Read:
    """What the thread made."""

    found: Candidate | Refusal
    peers: PeerIndex | None = None


@dataclass(slots=True)
class _Box:
    """Where an answer is put, also one that comes too late for anybody to look."""

    answers: list[Any] = field(default_factory=list)


class Reloader:
    """Owns the order of the reloads of one daemon. `run` and `watch` run as tasks."""

    def __init__(
        self,
        source: ConfigSource,
        notifier: Notifier,
        record: Record,
        *,
        address_of: plan.AddressOf,
        apply: Apply,
    ) -> None:
        """Prepare.

        Args:
            source: the configuration in force.
            notifier: of systemd.
            record: takes an event row.
            address_of: the address of a device.
            apply: called on the loop with the old and the new configuration and the index of its
                peers.
        """
        self._source, self._notifier, self._record = source, notifier, record
        self._address_of, self._apply = address_of, apply
        self._reader = BlockingCaller("config", READ_S)
        self._looker = BlockingCaller("peers-file", ANSWER_S)
        self._watch = PeersWatch()
        self._next: _Request | None = None
        self._asked = asyncio.Event()
        self._closed = False
        self._log = structlog.get_logger()

    async def reload(self, by: str) -> list[str]:
        """Take the files as they are now; the old configuration stays when they are wrong.

        Returns:
            The keys that changed.

        Raises:
            ConfigError: refused as a whole, or the daemon stops.
        """
        return await asyncio.shield(self._request(by))

    def hang_up(self) -> None:
        """SIGHUP: as `reload`, and nobody waits for the answer."""
        self._request("SIGHUP").add_done_callback(_retrieved)

    async def run(self) -> None:
        """Serve one request after the other until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            request, self._next = self._next, None
            if request is not None:
                await self._serve(request)

    async def watch(self) -> None:
        """Reload when ``peers_file`` has another version, until cancelled.

        Likewise when a device came that a link names by an altname: the link takes the kernel's.
        """
        silent = False
        tried: set[str] = set()
        while True:
            await asyncio.sleep(LOOK_S)
            links = self._source.config.links
            altnames = {x.netdev for x in links if kernel_name(x.netdev) != x.netdev}
            if altnames - tried:
                with contextlib.suppress(ConfigError):  # Said already.
                    await self.reload("altname")
            tried = altnames
            name = self._source.config.paths.peers_file
            if name is None:
                continue
            box = _Box()
            answered = await self._looker.call(lambda: file_state(name), box.answers.append)  # noqa: B023
            if not answered:
                if not silent:
                    self._log.warning("peers_file: no answer", file=name, limit_s=ANSWER_S)
                silent = True
                continue
            silent = False
            state: FileState = box.answers[0]
            if self._watch.update(name, state, self._source.peers_file, time.monotonic_ns()):
                with contextlib.suppress(ConfigError):  # Said already.
                    await self.reload(WATCH)

    def close(self) -> None:
        """Refuse all requests from now on: the daemon stops."""
        self._closed = True
        request, self._next = self._next, None
        if request is not None:
            self._refuse_closed(request)

    def _request(self, by: str) -> asyncio.Future[list[str]]:
        if self._next is None:
            self._next = _Request([], asyncio.get_running_loop().create_future())
            self._asked.set()
        request = self._next
        if by not in request.by:
            request.by.append(by)
        if self._closed:
            self._next = None
            self._refuse_closed(request)
        return request.done

    def _refuse_closed(self, request: _Request) -> None:
        if not request.done.done():
            file = str(self._source.file)
            request.done.set_exception(
                ConfigError([Problem(file, 0, "(file)", "not reloaded: fabricd stops")])
            )

    async def _serve(self, request: _Request) -> None:
        try:
            self._notifier.reloading()
            result = await self._reload(request.by)
            self._notifier.ready("reloaded")
            request.done.set_result(result)
        except ConfigError as error:
            self._notifier.ready("reloaded")
            request.done.set_exception(error)
        except asyncio.CancelledError:
            self._refuse_closed(request)
            raise
        except Exception as error:  # The task ends, and with it the daemon.
            request.done.set_exception(error)
            raise

    async def _reload(self, by: list[str]) -> list[str]:
        read, source = await self._read(), self._source
        found, who = read.found, ", ".join(by)
        if isinstance(found, Refusal):
            source.refuse(found)
            problems = found.error.problems
            for problem in problems[:SAID]:
                self._log.error("configuration refused, the old one stays", problem=str(problem))
            if len(problems) > SAID:
                self._log.error("more problems", left_out=len(problems) - SAID)
            self._record(
                EventKind.DAEMON, "reload refused", problem=str(problems[0])[:300],
                problems=len(problems), by=who,
            )  # fmt: skip
            raise found.error
        if by == [WATCH] and not found.changed and not source.problems:
            source.peers_file = found.loaded.peers_file  # Written again, and says the same.
            return []
        old = source.config
        source.accept(found)
        self._apply(old, source.config, read.peers or PeerIndex(source.config.peers))
        self._record(
            EventKind.DAEMON, "reloaded", by=who, hash=source.hash,
            changed=", ".join(found.changed)[:300] or "nothing",
        )  # fmt: skip
        return found.changed

    async def _read(self) -> _Read:
        known = {x.netdev: self._address_of(x.netdev) for x in self._source.config.links}
        box = _Box()

        def work() -> _Read:
            found = self._source.candidate()
            if isinstance(found, Refusal):
                return _Read(found)
            config = found.loaded.config
            peers = PeerIndex(config.peers)
            # Kept in the index: the loop finds it there.
            peers.paths(config, plan.link_addresses(config, known.get))
            return _Read(found, peers)

        if await self._reader.call(work, box.answers.append):
            answer: _Read = box.answers[0]
            return answer
        what = f"the files are not read after {READ_S:g} s; the file system does not answer"
        problem = Problem(str(self._source.file), 0, "(file)", what)
        return _Read(Refusal(ConfigError([problem]), self._source.peers_file))


def _retrieved(future: asyncio.Future[list[str]]) -> None:
    """Its exception is said already."""
    if not future.cancelled():
        future.exception()
